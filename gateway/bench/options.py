"""The options of `llamapool bench`, and the objects made from them."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson

from gateway.bench import lengths
from gateway.bench.client.dialects import BenchEndpoint, BenchTarget
from gateway.bench.drive import BenchLoad
from gateway.bench.lengths import SHAREGPT_PROMPT, SHAREGPT_REPLY, Lengths
from gateway.bench.plan import LoadShape
from gateway.bench.prompts import prompts_in
from gateway.bench.summary import Slo

_Command = TypeVar("_Command", bound=Callable[..., Any])
_USUAL_REQUESTS = 32
"""Conversations of a load without `--requests` and `--duration`."""


class LengthType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A distribution of lengths."""

    name = "LENGTH"

    def __init__(self, sharegpt: Lengths) -> None:
        self._sharegpt = sharegpt

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Lengths:
        """Read a distribution; fails with the valid forms."""
        if isinstance(value, Lengths):
            return value
        try:
            return lengths.parse(value, self._sharegpt)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class NumberRange(click.FloatRange):
    """A range of numbers, without NaN."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number


def _key(_ctx: click.Context, _param: click.Parameter, key: str) -> str:
    if not key.isprintable():
        raise click.BadParameter("has characters that cannot be printed")
    return key


_PROMPT, _REPLY = LengthType(SHAREGPT_PROMPT), LengthType(SHAREGPT_REPLY)
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_NATURAL, _POSITIVE, _NOT_NEGATIVE = click.IntRange(0), click.IntRange(1), NumberRange(0)

_OPTIONS = (
    click.option(
        "--endpoint",
        type=click.Choice([str(endpoint) for endpoint in BenchEndpoint]),
        default="chat",
        show_default=True,
        help="Endpoint to measure; native is llama-server's /completion.",
    ),
    click.option("--model", default="", help="Model name; empty: the first that the server lists."),
    click.option(
        "--api-key", default="", envvar="LLAMA_API_KEY", callback=_key, help="Bearer key."
    ),
    click.option("--no-stream", is_flag=True, help="Ask for whole answers instead of streams."),
    click.option(
        "--prompt-tokens",
        type=_PROMPT,
        default="128",
        show_default=True,
        help=f"Length of a prompt in words, about a token each: {lengths.SYNTAX}.",
    ),
    click.option(
        "--max-tokens",
        type=_REPLY,
        default="64",
        show_default=True,
        help="Length of an answer in tokens, in the same notation.",
    ),
    click.option(
        "--prompts",
        type=_FILE,
        help="File with one prompt a line; of .jsonl: 'prompt', 'text' or 'text_input'.",
    ),
    click.option(
        "--shared-prefix",
        type=_NATURAL,
        default=0,
        help="Words of the system prompt that a group shares.",
    ),
    click.option("--groups", type=_POSITIVE, default=1, help="Number of such groups."),
    click.option(
        "--turns",
        type=_POSITIVE,
        default=1,
        help="Requests of a conversation; each repeats the earlier ones.",
    ),
    click.option("--batch", type=_POSITIVE, default=1, help="Inputs of an embeddings request."),
    click.option("--ignore-eos", is_flag=True, help="Send ignore_eos (llama.cpp's servers only)."),
    click.option(
        "--field",
        multiple=True,
        metavar="NAME=JSON",
        help="Further field of the body; may be repeated.",
    ),
    click.option("--concurrency", type=_POSITIVE, help="Conversations at once. [default: 1]"),
    click.option(
        "--rate",
        type=NumberRange(0, 1e5),
        help="Open loop: conversations a second, Poisson arrivals.",
    ),
    click.option("--requests", type=_POSITIVE, help="Conversations to begin. [default: 32]"),
    click.option("--duration", type=_NOT_NEGATIVE, help="Seconds in which conversations begin."),
    click.option(
        "--warmup", type=_NATURAL, default=0, help="Conversations before the load, not measured."
    ),
    click.option(
        "--mixed",
        type=_NATURAL,
        default=0,
        metavar="N",
        help="Streams that decode during the whole load, reported apart.",
    ),
    click.option(
        "--mixed-tokens",
        type=_POSITIVE,
        default=512,
        show_default=True,
        help="Tokens of their answers.",
    ),
    click.option("--seed", type=int, default=0, help="Seed of texts, lengths and arrivals."),
    click.option(
        "--timeout", type=_NOT_NEGATIVE, default=600.0, help="Longest request, in seconds."
    ),
    click.option(
        "--slo-ttft", type=_NOT_NEGATIVE, default=0.0, help="Goodput: limit of TTFT, in ms."
    ),
    click.option(
        "--slo-itl", type=_NOT_NEGATIVE, default=0.0, help="Goodput: limit of the mean ITL, in ms."
    ),
    click.option(
        "--slo-e2e",
        type=_NOT_NEGATIVE,
        default=0.0,
        help="Goodput: limit of a whole request, in ms.",
    ),
    click.option(
        "--json",
        "file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write the figures to this file.",
    ),
    click.option("--details", is_flag=True, help="With --json: also the times of each request."),
)


def with_options(command: _Command) -> _Command:
    """Add all options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def target_of(url: str, values: Mapping[str, Any]) -> BenchTarget:
    """Make the target from the options."""
    for text in (values["model"], *values["field"]):
        if any("\udc80" <= char <= "\udcff" for char in text):
            raise click.UsageError(f"{text!a} is no UTF-8 text")
    return BenchTarget(
        url=url,
        endpoint=BenchEndpoint(values["endpoint"]),
        model=values["model"],
        api_key=values["api_key"],
        stream=not values["no_stream"],
        ignore_eos=values["ignore_eos"],
        fields=dict(map(_field, values["field"])),
        timeout_s=values["timeout"],
    )


def shape_of(values: Mapping[str, Any]) -> LoadShape:
    """Make the shape of the conversations from the options."""
    if values["batch"] > 1 and values["endpoint"] != BenchEndpoint.EMBEDDINGS:
        raise click.UsageError("--batch is for --endpoint embeddings")
    try:
        prompts = prompts_in(values["prompts"]) if values["prompts"] else ()
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    return LoadShape(
        prompt=values["prompt_tokens"],
        output=values["max_tokens"],
        shared_prefix=values["shared_prefix"],
        groups=values["groups"],
        turns=values["turns"],
        batch=values["batch"],
        prompts=prompts,
    )


def load_of(values: Mapping[str, Any]) -> BenchLoad:
    """Make the load from the options."""
    if values["rate"] and values["concurrency"]:
        raise click.UsageError("--concurrency closes the loop and --rate opens it: use one of them")
    if values["mixed"] and (values["no_stream"] or values["endpoint"] == BenchEndpoint.EMBEDDINGS):
        raise click.UsageError("--mixed needs streams")
    requests = values["requests"] or (0 if values["duration"] else _USUAL_REQUESTS)
    return BenchLoad(
        concurrency=values["concurrency"] or 1,
        rate=values["rate"] or 0.0,
        requests=requests,
        duration_s=values["duration"] or 0.0,
        warmup=values["warmup"],
        background=values["mixed"],
        background_tokens=values["mixed_tokens"],
        seed=values["seed"],
    )


def slo_of(values: Mapping[str, Any]) -> Slo:
    """Make the limits of goodput from the options."""
    return Slo(ttft_ms=values["slo_ttft"], itl_ms=values["slo_itl"], e2e_ms=values["slo_e2e"])


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError as error:
        wrong = "has no value" if not equals else f"is no JSON: {error}"
        raise click.UsageError(f"--field {text}: {wrong}") from error
