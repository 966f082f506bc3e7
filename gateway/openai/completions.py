"""The body of /v1/completions, turned into tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.llamacpp.media import place_media
from gateway.llamacpp.options import read_flag, read_int, read_object, read_ping_interval
from gateway.llamacpp.prompt import Prompt, read_prompts
from gateway.llamacpp.structured import read_json_schema
from gateway.openai.text_chunks import TextReply
from gateway.openai.usage import Wishes
from gateway.refusals import refuse_unsupported
from gateway.reply import Plan, fan_out
from protocol.errors import InvalidRequest
from protocol.facts import ModelCard
from protocol.messages import Generate
from protocol.schema import read


def plan(body: Mapping[str, Any], card: ModelCard) -> Plan:
    """Plan a text completion; raises `InvalidRequest` naming the field."""
    refuse_unsupported(body)
    n_top = read_int(body, "logprobs", 0, 1000)
    native = dict(body)
    if n_top is not None:
        # 0 asks for the chosen token's probability alone, which the worker counts as one rival.
        native["logprobs"] = max(n_top, 1)
    params = read(card.defaults, native)
    _check_best_of(body, params.n)
    prompts = read_prompts(body, card.n_vocab)
    first = Generate(task_id=0, params=params, schema=read_json_schema(body))
    placed = [place_media(body, i, prompt, card) for i, prompt in enumerate(prompts)]
    wanted = [replace(first, prompt=prompt, media=media) for prompt, media in placed]
    tasks, each = fan_out(wanted, params)
    wishes = Wishes(
        include_usage=read_flag(read_object(body, "stream_options"), "include_usage"),
        verbose=read_flag(body, "verbose"),
        n_top=n_top if n_top is not None else params.n_probs or -1,
    )
    return Plan(
        tasks=tasks,
        reply=TextReply(card, each, wishes, _echoes(body, prompts, params.n, wishes)),
        stream=params.stream,
        ping_interval_s=read_ping_interval(body),
    )


def _check_best_of(body: Mapping[str, Any], n: int) -> None:
    best_of = read_int(body, "best_of", 1, 128)
    if best_of is not None and best_of != n:
        message = "Field 'best_of': choosing among more than n is not supported yet"
        raise InvalidRequest(message, param="best_of")


def _echoes(
    body: Mapping[str, Any], prompts: Sequence[Prompt], n: int, wishes: Wishes
) -> tuple[str | None, ...]:
    """Return what stands before each choice."""
    if not read_flag(body, "echo"):
        return (None,) * (len(prompts) * n)
    if wishes.n_top >= 0:
        message = "Field 'echo': log probabilities of the prompt are not supported yet"
        raise InvalidRequest(message, param="echo")
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        message = "Field 'echo': echo of a prompt in tokens is not supported yet"
        raise InvalidRequest(message, param="echo")
    return tuple(text for text in texts for _ in range(n))
