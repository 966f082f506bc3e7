"""Puts results of tools into the order of their calls, as DeepSeek V4's template expects them."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

Message = Mapping[str, Any]


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Sort the results after each answer that calls tools; other messages keep their places."""
    ordered: list[Message] = []
    order: dict[str, int] = {}
    for is_given, run in groupby(messages, lambda entry: entry.get("role") in ("user", "tool")):
        if is_given:
            ordered += _sorted(list(run), order)
            continue
        for message in run:
            ordered.append(message)
            if calls := message.get("tool_calls"):
                order = {str(call["id"]): i for i, call in enumerate(calls) if call.get("id")}
    return ordered


def _sorted(messages: list[Message], order: Mapping[str, int]) -> list[Message]:
    results = (message for message in messages if message.get("role") == "tool")
    by_call = iter(
        sorted(results, key=lambda message: order.get(str(message.get("tool_call_id")), 0))
    )
    return [next(by_call) if message.get("role") == "tool" else message for message in messages]
