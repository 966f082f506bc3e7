"""The body of /completion and /completions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.api.fields.media import place_media
from gateway.api.fields.options import read_ping_interval
from gateway.api.fields.params import read_params
from gateway.api.fields.prompt import read_prompts
from gateway.api.fields.structured import read_json_schema
from gateway.api.reply import RequestPlan, fan_out
from gateway.api.results.completion_reply import CompletionReply
from gateway.api.unsupported import refuse_unsupported
from protocol.system_prompt import read_system_prompt
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Generate

_LENGTHS = ("n_predict", "max_tokens", "max_completion_tokens")


def plan(body: Mapping[str, Any], card: ModelCard) -> RequestPlan:
    """Plan a native completion; raises `InvalidRequest` naming the field."""
    refuse_unsupported(body, besides=("system_prompt",))
    system = body.get("system_prompt")
    if system is not None and body.get("prompt") is None:
        # Without a prompt it only sets the system prompt, which workers read into their caches.
        body = {**body, "prompt": ""}
        if all(body.get(name) is None for name in _LENGTHS):
            body["n_predict"] = 0
    params = read_params(body, card)
    schema = read_json_schema(body)
    prompts = []
    for i, plain in enumerate(read_prompts(body, card.n_vocab)):
        prompt, media, fields = place_media(body, i, plain, card)
        task = Generate(prompt=prompt, params=params, schema=schema, media=media)
        prompts.append(replace(task, media_fields=fields))
    tasks, each = fan_out(prompts, params)
    return RequestPlan(
        tasks=tasks,
        reply=CompletionReply(card, each),
        stream=params.stream,
        ping_interval_s=read_ping_interval(body),
        system_prompt=None if system is None else read_system_prompt(system),
    )
