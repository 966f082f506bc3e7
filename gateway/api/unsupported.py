"""What this server does not support: a table of request fields and one of endpoints.

`REFUSED_FIELDS` are those on which llama-server, OpenAI or vLLM act, and this server does not
yet. A value that asks for something gets a 400 that names the field; null, or the value that asks
for nothing, passes.

Any other field that is not read is ignored, as llama-server ignores it: some change no answer (a
label of an account, a hint for speed), and clients such as Open WebUI send their own to every
server.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from protocol.errors import ErrorCode, InvalidRequest, TaskError

_Test = Callable[[Any], bool]


def other_than(*harmless: Any) -> _Test:
    """Return the test for a value that is none of these."""
    return lambda value: value not in harmless


def _not_empty(value: Any) -> bool:
    return bool(value)


Refusal = tuple[str, _Test]
"""The complaint, and the test for a value (not null) that asks for something."""

_CONSTRAINTS = ("guided_choice", "guided_grammar", "guided_json", "guided_regex")
_CONSTRAINED = "say response_format, json_schema or grammar; of vLLM's this is not supported yet"

REFUSED_FIELDS: Mapping[str, Refusal] = {
    "functions": ("function calls are not supported yet", _not_empty),
    "function_call": ("function calls are not supported yet", other_than("none", "auto")),
    "grammar_lazy": ("lazy grammars are not supported yet", _not_empty),
    "grammar_triggers": ("lazy grammars are not supported yet", _not_empty),
    "preserved_tokens": ("lazy grammars are not supported yet", _not_empty),
    "modalities": ("anything but text is not supported yet", other_than(["text"], [])),
    "system_prompt": (
        "a shared system prompt beside a conversation is not supported yet",
        _not_empty,
    ),
    "web_search_options": ("web search is not supported yet", other_than()),
    "chat_template": ("a template in the request is not supported yet", _not_empty),
    "chat_parser": ("choosing the chat parser is not supported yet", _not_empty),
    **dict.fromkeys((*_CONSTRAINTS, "structured_outputs"), (_CONSTRAINED, _not_empty)),
}
"""The fields that endpoints refuse, unless they read them or have a row of their own."""


def refuse_unsupported(
    body: Mapping[str, Any],
    *,
    besides: Collection[str] = (),
    own: Mapping[str, Refusal] = MappingProxyType({}),
) -> None:
    """Raise `InvalidRequest` for the first field that asks for something unsupported.

    `besides` are fields of the table that this endpoint reads, `own` those that it refuses itself.
    """
    for key, value in body.items():
        row = own.get(key) or REFUSED_FIELDS.get(key)
        if row is not None and key not in besides and value is not None and row[1](value):
            raise InvalidRequest(f"Field '{key}': {row[0]}", param=key)


REFUSED_ENDPOINTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "/v1/systemone": (("POST",), "decision models"),
}
"""Path to methods and purpose: the endpoints of llama-server that this server lacks."""


def refuse_endpoint(path: str, what: str) -> TaskError:
    """Build the 501 of an endpoint that this server lacks."""
    message = f"{what[0].upper()}{what[1:]} ({path}) is not supported yet by this server"
    return TaskError(ErrorCode.NOT_SUPPORTED, message)
