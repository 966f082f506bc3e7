"""Fields with their bounds that several bodies share; headers, query parameters, paths.

Which body has which fields is in `endpoints.py`; fields of sampling are declared in
`protocol/wire/sampling.py`. Validation, the OpenAPI document and the pages are made from these
tables. A free-form value is bounded as a whole and passed on.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import cast

from gateway.api.fields.structures import (
    FUNCTIONS,
    METADATA,
    RESPONSE_FORMAT,
    SCHEMA,
    TEMPLATE_VARIABLES,
    TOOL_CHOICE,
    TOOLS,
    WORD,
)
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import describe, shape_of
from protocol.wire.shapes import (
    CONTEXT_BYTES,
    INT32_MAX,
    Clamp,
    Either,
    Fields,
    FieldShape,
    Flag,
    Items,
    Number,
    TextShape,
)
from protocol.wire.values import GRAMMAR

Table = Mapping[str, FieldShape]

FLAG = Flag()
MODEL = TextShape(max_length=4096)
SESSION = TextShape(max_length=1024)
TOP = Number(low=0, high=1024, clamps=Clamp.BOTH)
LOG_PROBS = Either((FLAG, TOP))
COUNT = Number(low=0, high=INT32_MAX)
PROMPT_TEXT = TextShape(max_length=CONTEXT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Body:
    """One kind of request body."""

    doc: str
    fields: Table = field(default_factory=dict)
    has_sampling: bool = False
    """It also has the fields of `protocol/wire/sampling.py`."""
    required: tuple[str, ...] = ()
    is_form: bool = False
    """It comes as multipart/form-data, not as JSON."""


PRIORITY = Number(low=-INT32_MAX - 1, high=INT32_MAX)
ORIGIN: Table = {
    "cache_salt": SESSION,
    "prompt_cache_key": SESSION,
    "session_id": SESSION,
    "user": SESSION,
    "metadata": METADATA,
    "priority": PRIORITY,
}
"""Fields that tell where a request comes from and how urgent it is (`gateway/pool/routing/`)."""
SHARED: Table = {
    **ORIGIN,
    "model": MODEL,
    "json_schema": SCHEMA,
    "sse_ping_interval": Number(low=-1, high=INT32_MAX),
    "verbose": FLAG,
    "tokenize": FLAG,
}
_TOOL_FIELDS: Table = {
    "tools": TOOLS,
    "tool_choice": TOOL_CHOICE,
    "parallel_tool_calls": FLAG,
}
USAGE: Table = {"stream_options": Fields({"include_usage": FLAG})}
_CHOICES = Items(TextShape(max_length=4096), 1024)
CONSTRAINTS: Table = {
    "structured_outputs": Fields(
        {"json": SCHEMA, "json_object": FLAG, "choice": _CHOICES, "grammar": GRAMMAR}
    ),
    "guided_json": SCHEMA,
    "guided_choice": _CHOICES,
    "guided_grammar": GRAMMAR,
}
"""vLLM's constraints of an answer."""
MEDIA_DATA: Table = {
    "image_data": Items(
        Fields(
            {
                "id": Number(low=-(2**63), high=2**64 - 1),
                "data": TextShape(max_length="image_bytes", is_medium=True),
            }
        ),
        "images",
    ),
}
CHAT: Table = {
    **SHARED,
    **_TOOL_FIELDS,
    "response_format": RESPONSE_FORMAT,
    "chat_template_kwargs": TEMPLATE_VARIABLES,
    "reasoning_effort": WORD,
    "continue_final_message": Either((FLAG, WORD)),
    "add_generation_prompt": FLAG,
    "top_logprobs": TOP,
    "echo": FLAG,
    "functions": FUNCTIONS,
    "function_call": TOOL_CHOICE,
}
"""Fields of the chats of all dialects (`gateway/api/chat_request.py`)."""

HEADERS: Table = {
    "x-session-id": SESSION,
    "x-session-affinity": SESSION,
    "x-conversation-id": SESSION,
    "x-litellm-session-id": SESSION,
    "x-request-timeout": WORD,
    "x-slo-ttft-ms": WORD,
    "x-priority": WORD,
}
"""Headers whose value is read; `header_kib` bounds all headers together."""

QUERIES: Table = {
    "model": MODEL,
    "autoload": WORD,
    "reload": WORD,
    "limit": WORD,
    "after_id": MODEL,
    "before_id": MODEL,
    "action": WORD,
    "legacy": WORD,
    "fail_on_no_slot": WORD,
    "include_slots": WORD,
    "by": WORD,
    "from": WORD,
    "conv_id": MODEL,
    "to": WORD,
    "key": MODEL,
    "state": WORD,
    "fingerprint": WORD,
}
"""Query parameters of all endpoints."""

PATHS: Table = {"id": MODEL, "id_slot": Number(low=0, high=999_999_999)}
"""Parameters in paths."""


@cache
def fields_of(body: Body) -> Table:
    """Return all fields of a body, under all their names."""
    table: dict[str, FieldShape] = {}
    for row in describe(cast(Hashable, SamplingParams)) if body.has_sampling else ():
        table |= dict.fromkeys((row.name, *row.spec.aliases), shape_of(row))
    table.update(body.fields)
    return table
