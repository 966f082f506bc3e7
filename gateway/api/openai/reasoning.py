"""The fields of a chat about thoughts and about going on with the last message."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.api.fields.options import read_flag, read_object, wrong_type
from protocol.errors import InvalidRequest

_MARKS = (
    "generation_prompt",
    "reasoning_budget_start_tag",
    "reasoning_budget_end_tags",
    "reasoning_budget_end_tag",
)
_FORMATS = ("none", "auto", "deepseek", "deepseek-legacy")


class Continuation(NamedTuple):
    """How the end of the prompt is written."""

    add_generation_prompt: bool
    continues: bool
    thought: bool | None
    """Go on with the message's thoughts; None is as the message has it."""


def refuse_marks(body: Mapping[str, Any]) -> None:
    """Refuse what only a plain prompt may say of thoughts: here the chat template does."""
    for key in _MARKS:
        if body.get(key):
            message = f"Field '{key}': in a chat its template says it"
            raise InvalidRequest(message, param=key)


def read_reasoning_format(body: Mapping[str, Any], default: str = "auto") -> str:
    """Read whether thoughts are taken out of the text."""
    value = body.get("reasoning_format")
    if value is None:
        return default
    if not isinstance(value, str):
        raise wrong_type("reasoning_format", "string", value)
    if value not in _FORMATS:
        raise InvalidRequest(f"Unknown reasoning format: {value}", param="reasoning_format")
    return value


def read_template_variables(
    body: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Merge what the template will see: its own variables and OpenAI's `reasoning_effort`."""
    kwargs = {**(defaults or {}), **read_object(body, "chat_template_kwargs")}
    thinking = kwargs.get("enable_thinking")
    if thinking is not None and not isinstance(thinking, bool):
        kind = "string" if isinstance(thinking, str) else type(thinking).__name__
        message = f'invalid type for "enable_thinking" (expected boolean, got {kind})'
        raise InvalidRequest(message, param="chat_template_kwargs.enable_thinking")
    effort = body.get("reasoning_effort")
    if effort is not None and not isinstance(effort, str):
        raise InvalidRequest("Field 'reasoning_effort': must be a string", param="reasoning_effort")
    if effort == "none":
        kwargs.pop("reasoning_effort", None)
        kwargs["enable_thinking"] = False
    elif effort:
        kwargs["reasoning_effort"] = effort
    return kwargs


def read_continuation(
    body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], *, prefills: bool = True
) -> Continuation:
    """Settle whether the answer begins anew or goes on with an assistant's last message.

    `prefills` tells whether it goes on with one even if the request does not say so.
    """
    adds = read_flag(body, "add_generation_prompt", default=True)
    value = body.get("continue_final_message")
    if value is not None and not isinstance(value, bool | str):
        raise wrong_type("continue_final_message", "boolean", value)
    if isinstance(value, str) and value not in ("content", "reasoning_content"):
        message = (
            'Field \'continue_final_message\': must be a boolean, "content" or "reasoning_content"'
        )
        raise InvalidRequest(message, param="continue_final_message")
    last = messages[-1] if messages else {}
    is_ours = last.get("role") == "assistant"
    if not value and is_ours and prefills:
        if len(messages) > 1 and messages[-2].get("role") == "assistant":
            message = "Cannot have 2 or more assistant messages at the end of the list."
            raise InvalidRequest(message, param="messages")
        value, adds = True, False
    if not value:
        return Continuation(adds, continues=False, thought=None)
    _check(last, adds=adds, is_ours=is_ours)
    thought = None if value is True else value == "reasoning_content"
    return Continuation(add_generation_prompt=False, continues=True, thought=thought)


def _check(last: Mapping[str, Any], *, adds: bool, is_ours: bool) -> None:
    if adds:
        message = "Cannot set both add_generation_prompt and continue_final_message to true."
        raise InvalidRequest(message, param="add_generation_prompt")
    if not is_ours:
        message = "Cannot continue: the last message is not the assistant's"
        raise InvalidRequest(message, param="continue_final_message")
    if last.get("tool_calls"):
        message = "Cannot continue an assistant message that contains tool calls."
        raise InvalidRequest(message, param="continue_final_message")
