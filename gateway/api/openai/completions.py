"""The body of /v1/completions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.api.fields.constraints import with_constraint
from gateway.api.fields.media import place_media
from gateway.api.fields.options import (
    read_flag,
    read_int,
    read_n_top,
    read_object,
    read_ping_interval,
)
from gateway.api.fields.params import read_params
from gateway.api.fields.prompt import Prompt, check_infill, read_prompts
from gateway.api.fields.structured import read_json_schema
from gateway.api.openai.text_reply import TextReply
from gateway.api.reply import RequestPlan, ResponseOptions, fan_out
from gateway.api.unsupported import refuse_unsupported
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Generate, Infill
from protocol.wire.schema import wrong_type

_MAX_ECHOED = 20
"""Maximum alternatives of each token of a prompt; more make messages of many megabytes."""


def plan(body: Mapping[str, Any], card: ModelCard) -> RequestPlan:
    """Plan a text completion; raises `InvalidRequest` naming the field."""
    body = with_constraint(body)
    refuse_unsupported(body)
    n_top = _read_log_probs(body)
    # 0 asks for the chosen token's probability alone; for the worker that is one alternative.
    native = {**body, "logprobs": None if n_top is None else max(n_top, 1)}
    params = read_params(native, card)
    _check_best_of(body, params.n)
    prompts = read_prompts(body, card.n_vocab)
    first = Generate(params=params, schema=read_json_schema(body))
    placed = [place_media(body, i, prompt, card) for i, prompt in enumerate(prompts)]
    wanted = [
        replace(first, prompt=entry.prompt, media=entry.media, media_fields=entry.fields)
        for entry in placed
    ]
    if suffix := _read_suffix(body, card):
        wanted = [_with_gap(task, suffix) for task in wanted]
    options = ResponseOptions(
        include_usage=read_flag(read_object(body, "stream_options"), "include_usage"),
        verbose=read_flag(body, "verbose"),
        n_top=n_top if n_top is not None else params.n_probs or -1,
    )
    if read_flag(body, "echo"):
        wanted = [_with_echo(task) for task in wanted]
    tasks, each = fan_out(wanted, params)
    return RequestPlan(
        tasks=tasks,
        reply=TextReply(card, each, options, _echoes(body, prompts, params.n)),
        stream=params.stream,
        ping_interval_s=read_ping_interval(body),
    )


def _read_log_probs(body: Mapping[str, Any]) -> int | None:
    """Read how many alternatives to show; true, as in a chat, is one, and false is none."""
    if isinstance(body.get("logprobs"), bool):
        return 1 if body["logprobs"] else None
    return read_n_top(body, "logprobs")


def _read_suffix(body: Mapping[str, Any], card: ModelCard) -> str:
    """Read the text after the wanted one; an empty suffix asks for nothing."""
    suffix = body.get("suffix")
    if suffix is None or suffix == "":
        return ""
    if not isinstance(suffix, str):
        raise wrong_type("suffix", "string", suffix)
    check_infill(card)
    return suffix


def _with_gap(task: Generate, suffix: str) -> Generate:
    """Make the prompt the text before a gap, like the prefix of /infill."""
    if not isinstance(task.prompt, str) or task.media:
        message = "Field 'suffix': needs a prompt that is text, without images or sounds"
        raise InvalidRequest(message, param="suffix")
    return replace(task, prompt="", infill=Infill(prefix=task.prompt, suffix=suffix))


def _check_best_of(body: Mapping[str, Any], n: int) -> None:
    best_of = read_int(body, "best_of", 1, 128)
    if best_of is not None and best_of != n:
        message = "Field 'best_of': choosing among more than n is not supported yet"
        raise InvalidRequest(message, param="best_of")


def _with_echo(task: Generate) -> Generate:
    """Ask the worker for the prompt's tokens where its text is not enough for the echo."""
    if isinstance(task.prompt, str) and not task.params.n_probs:
        return task
    problem, param = "", "echo"
    if task.media or task.infill is not None:
        problem = "log probabilities of a prompt with media or a suffix are not supported"
    elif task.params.post_sampling_probs:
        problem, param = "cannot be used together with echo", "post_sampling_probs"
    elif task.params.n_probs > _MAX_ECHOED:
        problem, param = f"must be at most {_MAX_ECHOED} with echo", "logprobs"
    if problem:
        raise InvalidRequest(f"Field '{param}': {problem}", param=param)
    return replace(task, echo=True)


def _echoes(body: Mapping[str, Any], prompts: Sequence[Prompt], n: int) -> tuple[str | None, ...]:
    """Return the echo of each choice, empty for a prompt in tokens: the worker knows its text."""
    if not read_flag(body, "echo"):
        return (None,) * (len(prompts) * n)
    texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
    return tuple(text for text in texts for _ in range(n))
