"""Fields of a chat about reasoning, and about continuing its last message."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.api.fields.chat.conversation import ChatMessage
from gateway.api.fields.options import optional_string, read_flag, read_object
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.schema import wrong_type

_MARKS = (
    "generation_prompt",
    "reasoning_budget_start_tag",
    "reasoning_budget_end_tags",
    "reasoning_budget_end_tag",
)
_FORMATS = ("none", "auto", "deepseek", "deepseek-legacy")


class Continuation(NamedTuple):
    """How the prompt ends."""

    add_generation_prompt: bool
    continues: bool
    """The answer continues the last message."""
    thought: bool | None
    """It continues the message's reasoning; None is as the message has it."""
    is_asked: bool = True
    """Whether the request asks for it; if not, a stream repeats the message, as in llama-server."""


def refuse_marks(body: Mapping[str, Any]) -> None:
    """Refuse the marks of reasoning: in a chat they are the template's."""
    for key in _MARKS:
        if body.get(key):
            message = f"Field '{key}': must not be set in a chat, the chat template sets it"
            raise InvalidRequest(message, param=key)


def read_reasoning_format(body: Mapping[str, Any], default: str) -> str:
    """Read whether reasoning is separated from the text."""
    value = body.get("reasoning_format")
    if value is None:
        return default
    if not isinstance(value, str):
        raise wrong_type("reasoning_format", "string", value)
    if value not in _FORMATS:
        raise InvalidRequest(f"Unknown reasoning format: {value}", param="reasoning_format")
    return value


def read_effort(body: Mapping[str, Any]) -> str | None:
    """Read OpenAI's `reasoning_effort`."""
    return optional_string(body.get("reasoning_effort"), "reasoning_effort")


def read_template_variables(
    body: Mapping[str, Any], defaults: Mapping[str, Any], effort: str | None
) -> dict[str, Any]:
    """Merge the template's variables: the defaults, those of the request, and its effort."""
    kwargs = {**defaults, **read_object(body, "chat_template_kwargs")}
    if "messages" in kwargs:
        name = "chat_template_kwargs.messages"
        message = f"Field '{name}': must not be set, the template gets the request's messages"
        raise InvalidRequest(message, param=name)
    thinking = kwargs.get("enable_thinking")
    if thinking is not None and not isinstance(thinking, bool):
        kind = "string" if isinstance(thinking, str) else type(thinking).__name__
        message = f'invalid type for "enable_thinking" (expected boolean, got {kind})'
        raise InvalidRequest(message, param="chat_template_kwargs.enable_thinking")
    if effort == "none":
        kwargs.pop("reasoning_effort", None)
        kwargs["enable_thinking"] = False
    elif effort:
        kwargs["reasoning_effort"] = effort
    return kwargs


def read_continuation(
    body: Mapping[str, Any], messages: Sequence[ChatMessage], card: ModelCard, field: str
) -> Continuation:
    """Read whether the answer starts a new message or continues the assistant's last one.

    Some models continue it even if the request does not ask for that. `field` names the messages.
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
    is_assistants = [message.role == "assistant" for message in messages[-2:]]
    is_asked = bool(value)
    if not value and card.prefill_assistant and is_assistants[-1:] == [True]:
        if all(is_assistants) and len(is_assistants) == 2:
            message = "Cannot have 2 or more assistant messages at the end of the list."
            raise InvalidRequest(message, param=field)
        value, adds = True, False
    if not value:
        return Continuation(adds, continues=False, thought=None)
    _check_continued(messages[-1] if messages else None, adds=adds)
    thought = None if value is True else value == "reasoning_content"
    return Continuation(False, continues=True, thought=thought, is_asked=is_asked)


def _check_continued(last: ChatMessage | None, *, adds: bool) -> None:
    if adds:
        message = "Cannot set both add_generation_prompt and continue_final_message to true."
        raise InvalidRequest(message, param="add_generation_prompt")
    if last is None or last.role != "assistant":
        message = "Cannot continue: the last message is not the assistant's"
        raise InvalidRequest(message, param="continue_final_message")
    if last.tool_calls:
        message = "Cannot continue an assistant message that contains tool calls."
        raise InvalidRequest(message, param="continue_final_message")
