"""How long the ids of calls and items may be, in each API."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.api.fields.bounds import bounds_of, check_body
from protocol.config.limits import LimitsConfig
from protocol.errors import TaskError
from tests.gateway.cards import CARD

LONG = replace(CARD, n_ctx_total=25_000, longest_piece=100)
SHORT = replace(CARD, n_ctx_total=1, longest_piece=8)


def _with_id(id_: str) -> list[tuple[str, dict[str, Any]]]:
    """Return bodies that name a call, with the API of each."""
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": id_, "type": "function", "function": function}]
    blocks = [{"type": "tool_use", "id": id_, "name": "f", "input": {}}]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": "4"}]
    messages = [
        ("ChatCompletion", {"role": "assistant", "tool_calls": calls}),
        ("ChatCompletion", {"role": "tool", "tool_call_id": id_, "content": "4"}),
        ("Message", {"role": "assistant", "content": blocks}),
        ("Message", {"role": "user", "content": results}),
    ]
    items = [
        {"type": "function_call", "call_id": id_, **function},
        {"type": "function_call_output", "call_id": id_, "output": "4"},
        {"type": "reasoning", "id": id_, "summary": []},
    ]
    bodies = [(api, {"messages": [message]}) for api, message in messages]
    return bodies + [("Response", {"input": [item]}) for item in items]


def test_the_id_of_a_call_may_hold_a_signature() -> None:
    bounds = bounds_of(LONG, LimitsConfig())
    for api, body in _with_id("x" * 64 * 1024):
        check_body(api, body, bounds.anew())
    for api, body in _with_id("x" * (64 * 1024 + 1)):
        with pytest.raises(TaskError, match="at most 65536 characters"):
            check_body(api, body, bounds.anew())


def test_ids_of_calls_count_as_text_of_the_prompt() -> None:
    bounds = bounds_of(SHORT, LimitsConfig(text_kib=1))
    for api, body in _with_id("x" * 64 * 1024):
        with pytest.raises(TaskError, match="exceed the available context size"):
            check_body(api, body, bounds.anew())
