"""The bounds of one request by name, from the model's card and `[gateway.limits]`."""

from collections.abc import Mapping
from typing import Any

from gateway.api.fields.endpoints import BODIES
from gateway.api.fields.tables import HEADERS, QUERIES, fields_of
from protocol.config.limits import LimitsConfig
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.shapes import INT32_MAX, Bounds, FieldShape

_KIB = 1024
_BASE64_MIB = 1024 * 1024 * 4 // 3
_DEFAULT_PIECE = 64
"""Bytes of a vocabulary's longest piece, where the card lacks the number."""
_PIECE_OF_TEXT = 16
"""Bytes of a token, rounded up, in texts that are tokenized for the sampler."""
_CUT = 4
"""Maximum length of a prompt, in contexts: a worker may cut out its middle (`--context-shift`)."""
_ADAPTERS = 16
"""Entries of a list of LoRA adapters, where fewer are loaded: unknown ids are refused by name."""

DESCRIPTIONS: Mapping[str, str] = {
    "n_vocab": "tokens of the model's vocabulary",
    "n_ctx": "tokens of a slot's context",
    "context_bytes": "`context_tokens`, each the vocabulary's longest; at least `text_kib`",
    "context_tokens": f"{_CUT} times the tokens of the whole context; at least `tokens`",
    "slot_bytes": f"{_PIECE_OF_TEXT} for each token of a slot's context",
    "adapters": f"the adapters that are loaded, at least {_ADAPTERS}",
    "grammar_bytes": "`grammar_kib`",
    "schema_bytes": "`schema_kib`",
    "template_bytes": "`template_kib`",
    "image_bytes": "`image_mib`, written as base64",
}
"""What the names mean that are not keys of `[gateway.limits]`, for the documents."""


def bounds_of(card: ModelCard | None, limits: LimitsConfig) -> Bounds:
    """Return the number of each name; without a model, the context has none."""
    text, n_ctx, n_total = limits.text_kib * _KIB, 0, 0
    if card is not None:
        n_ctx, n_total = card.n_ctx, _CUT * card.n_ctx_total
        text = max(text, n_total * (card.longest_piece or _DEFAULT_PIECE))
    values: dict[str, float] = {
        name: getattr(limits, name)
        for name in (
            *("depth", "inputs", "messages", "stops", "stop_chars", "biases"),
            *("schema_depth", "tools", "images"),
        )
    }
    return Bounds(
        values
        | {
            "n_vocab": (card.n_vocab if card is not None else 0) or INT32_MAX,
            "n_ctx": n_ctx,
            "context_bytes": text,
            "context_tokens": max(limits.tokens, n_total),
            "slot_bytes": _PIECE_OF_TEXT * max(n_ctx, 256),
            "adapters": max(_ADAPTERS, card.n_lora if card is not None else 0),
            "grammar_bytes": limits.grammar_kib * _KIB,
            "schema_bytes": limits.schema_kib * _KIB,
            "template_bytes": limits.template_kib * _KIB,
            "image_bytes": limits.image_mib * _BASE64_MIB,
        }
    )


def check_body(kind: str, body: Any, bounds: Bounds) -> None:
    """Raise `TaskError` for the first field of a body that exceeds its bound."""
    table = fields_of(BODIES[kind])
    if isinstance(body, list):
        table[""].check(body, "body", bounds)
        return
    for key, value in body.items():
        shape = table.get(key)
        if shape is not None and value is not None:
            shape.check(value, key, bounds)


def check_known(kind: str, body: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for a field that a kind of body does not have."""
    table = fields_of(BODIES[kind])
    for key in body:
        if key not in table:
            raise InvalidRequest(f"Field '{key}' is unknown", param=key)


def check_head(scope: Mapping[str, Any], bounds: Bounds) -> None:
    """Raise `InvalidRequest` for a header or a query parameter that is too long."""
    for name, value in scope["headers"]:
        _check_length(HEADERS.get(name.decode("latin-1")), name.decode("latin-1"), value, bounds)
    query: bytes = scope.get("query_string", b"")
    for pair in query.split(b"&") if query else ():
        name, _, value = pair.partition(b"=")
        _check_length(QUERIES.get(name.decode("latin-1")), name.decode("latin-1"), value, bounds)


def _check_length(shape: FieldShape | None, name: str, value: bytes, bounds: Bounds) -> None:
    if shape is not None:
        shape.check(value.decode("latin-1"), name, bounds)
