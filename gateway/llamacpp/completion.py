"""The body of /completion and /completions, turned into tasks."""

from collections.abc import Mapping
from typing import Any

from gateway.llamacpp.options import read_ping_interval
from gateway.llamacpp.prompt import read_prompts
from gateway.llamacpp.results import CompletionReply
from gateway.refusals import refuse_unsupported
from gateway.reply import Plan, fan_out
from protocol.facts import ModelCard
from protocol.messages import Generate
from protocol.schema import read


def plan(body: Mapping[str, Any], card: ModelCard) -> Plan:
    """Plan a native completion; raises `InvalidRequest` naming the field."""
    refuse_unsupported(body)
    params = read(card.defaults, body)
    prompts = [
        Generate(task_id=0, prompt=prompt, params=params)
        for prompt in read_prompts(body, card.n_vocab)
    ]
    tasks, each = fan_out(prompts, params)
    return Plan(
        tasks=tasks,
        reply=CompletionReply(card, each),
        stream=params.stream,
        ping_interval_s=read_ping_interval(body),
    )
