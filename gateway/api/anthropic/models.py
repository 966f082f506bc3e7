"""GET /v1/models and /v1/models/{id} as Anthropic's clients know them: pages, and its own fields.

Anthropic's clients are recognized by their header `anthropic-version`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from protocol.errors import InvalidRequest

VERSION_HEADER = "anthropic-version"

_DEFAULT_LIMIT = 20
"""Models of a page where the query names no number, as Anthropic documents it."""
_MAX_LIMIT = 1000
"""Models of a page, as Anthropic documents them."""


def page(listed: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of a list that `limit`, `after_id` and `before_id` ask for."""
    limit = _read_limit(query.get("limit"))
    ids = [entry["id"] for entry in listed]
    start, end = 0, len(ids)
    if (after := query.get("after_id")) is not None:
        start = _find(ids, after, "after_id") + 1
    if (before := query.get("before_id")) is not None:
        end = _find(ids, before, "before_id")
        shown = listed[max(start, end - limit) : end]
    else:
        shown = listed[start : start + limit]
    return {
        "data": [model(entry) for entry in shown],
        "has_more": len(shown) < end - start,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
    }


def model(listed: Mapping[str, Any]) -> dict[str, Any]:
    """Return one model from its entry in OpenAI's list."""
    created = datetime.fromtimestamp(listed["created"], UTC)
    n_ctx = (listed.get("meta") or {}).get("n_ctx")
    return {
        "type": "model",
        "id": listed["id"],
        "display_name": listed["id"],
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": n_ctx,
        "max_tokens": n_ctx,
    }


def _read_limit(text: str | None) -> int:
    if text is None:
        return _DEFAULT_LIMIT
    if not (
        text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= _MAX_LIMIT
    ):
        message = f"Field 'limit': must be a number from 1 to {_MAX_LIMIT}"
        raise InvalidRequest(message, param="limit")
    return int(text)


def _find(ids: Sequence[str], id_: str, key: str) -> int:
    if id_ not in ids:
        raise InvalidRequest(f"Field '{key}': no model has this id", param=key)
    return ids.index(id_)
