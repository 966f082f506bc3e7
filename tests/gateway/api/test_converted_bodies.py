"""Whatever JSON arrives at /v1/responses and /v1/messages: a plan or a refusal, never a fault."""

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.anthropic import messages
from gateway.api.openai.responses import plan as responses
from protocol.errors import TaskError
from tests.gateway.cards import CARD

_TYPES = [
    *("message", "function_call", "function_call_output", "reasoning", "item_reference"),
    *("text", "input_text", "output_text", "refusal", "input_image", "image", "thinking"),
    *("tool_use", "tool_result", "function", "custom", "enabled", "json_schema", "base64"),
]
_KEYS = [
    *("type", "role", "content", "text", "summary", "output", "arguments", "name", "call_id"),
    *("id", "input", "source", "data", "url", "thinking", "tool_use_id", "parameters"),
    *("input_schema", "format", "effort", "budget_tokens", "image_url", "schema", "tools"),
]
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from([*_TYPES, "user", "assistant", "system", "tool"])
    | st.text(max_size=5)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5)
    ),
    max_leaves=12,
)


def _bodies(*fields: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(fields), _VALUES, max_size=6)


@given(
    _bodies(
        *("input", "instructions", "tools", "tool_choice", "reasoning", "text", "include"),
        *("max_output_tokens", "previous_response_id", "truncation", "metadata", "n", "stream"),
    )
)
def test_any_response_is_planned_or_refused(body: dict[str, Any]) -> None:
    with contextlib.suppress(TaskError):
        assert len(responses.plan(body, CARD).tasks) == 1


@given(
    _bodies(
        *("messages", "system", "tools", "tool_choice", "thinking", "output_config", "stream"),
        *("max_tokens", "stop_sequences", "metadata", "mcp_servers", "container", "n"),
    )
)
def test_any_message_is_planned_or_refused(body: dict[str, Any]) -> None:
    with contextlib.suppress(TaskError):
        assert len(messages.plan(body, CARD).tasks) == 1
