"""What differs between two answers, but for what always does."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.parity.random_requests.decided import as_today, error, is_refusal
from tests.parity.random_requests.pieces import joined

_NEVER = frozenset(
    (
        *("id", "created", "created_at", "completed_at", "item_id", "call_id", "model"),
        *("system_fingerprint", "id_slot", "grammar", "generation_prompt"),
        *("id_task", "n_prompt_tokens_processed", "build_info", "media_marker"),
    )
)
"""Names, times and numbers of their own; the two servers write grammars otherwise."""
_CACHED = ("cache_read_input_tokens", "input_tokens", "cached_tokens", "prompt_n", "cache_n")
"""Where the request cannot switch the cache off: ours keeps prompts that theirs has dropped."""
_FOUND = ("cache_n", "n_prompt_tokens_cache", "cache", "cached_tokens", "timings/cache_n")
"""How much was found in the cache: more of it is welcome, too."""
_TIMES = re.compile(r"(_ms|_per_second)$")
_OWN_ID = re.compile(r"(chatcmpl-|msg_|resp_|fc_|call_|rs_|toolu_)?[A-Za-z0-9]{20,}")


_IN_SLOTS = frozenset(
    (
        *("n_erased", "n_saved", "n_written", "n_restored", "n_read", "n_prompt_tokens"),
        *("n_prompt_tokens_cache", "next_token", "cache_n", "prompt_n", "timings/cache_n"),
        *("timings/prompt_n", "prompt_progress", "tokens_cached"),
    )
)


def differences(
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any],
    path: str,
    *,
    was_left: bool = False,
    may_be_wrong: bool = False,
) -> list[str]:
    """List what ours has otherwise, or lacks; more fields are welcome.

    After a client has left, what slots hold is a matter of time. A value that is wrong on purpose
    may be refused.
    """
    if theirs["status"] != ours["status"]:
        if is_refusal(theirs, ours, may_be_wrong=may_be_wrong):
            return []
        pair = f"{theirs['status']} became {ours['status']}"
        return [f"STATUS {pair} {path}: {_short(theirs['body'])} became {_short(ours['body'])}"]
    if theirs["status"] != 200:
        if is_refusal(theirs, ours, may_be_wrong=may_be_wrong) or error(theirs) == error(ours):
            return []
        return [f"ERROR {path}: {_short(error(theirs))} became {_short(error(ours))}"]
    skipped = _NEVER | set(_CACHED if path in ("/v1/messages", "/v1/responses") else ())
    skipped |= _IN_SLOTS if was_left else set()
    return list(_unequal(joined(theirs["body"]), joined(as_today(path, ours["body"])), "", skipped))


def _unequal(theirs: Any, ours: Any, path: str, skipped: frozenset[str]) -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key, value in theirs.items():
            if key in skipped or _TIMES.search(key) or _is_welcome(key, theirs, ours):
                continue
            if key in ours:
                yield from _unequal(value, ours[key], f"{path}.{key}", skipped)
            else:
                yield f"{path}.{key}: {_short(value)} is missing"
    elif isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            yield f"{path}[]: {len(theirs)} became {len(ours)}"
        for i, (one, other) in enumerate(zip(theirs, ours, strict=False)):
            yield from _unequal(one, other, f"{path}[{i}]", skipped)
    elif not _is_equal(theirs, ours):
        yield f"{path}: {_short(theirs)} became {_short(ours)}"


def _is_welcome(key: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Return whether ours found more in its cache, or leaves out what is told too early."""
    if key in _FOUND and key in ours:
        return bool(ours[key] >= theirs[key])
    if key == "prompt_n" and "cache_n" in theirs and "cache_n" in ours:
        return bool(ours[key] + ours["cache_n"] == theirs[key] + theirs["cache_n"])
    return _is_told_early(key, theirs, ours)


def _is_told_early(key: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Return whether it is what llama-server adds to some pieces of a stream.

    The times to the last piece before an end, and a token 0 to pieces that have none.
    """
    is_piece = theirs.get("stop") is False or "chunk" in str(theirs.get("object"))
    if key == "timings":
        return is_piece and key not in ours
    return key == "tokens" and is_piece and ours.get("tokens") == []


def _is_equal(theirs: Any, ours: Any) -> bool:
    is_number = type(theirs) in (int, float) and type(ours) in (int, float)
    if is_number:
        return math.isclose(theirs, ours, rel_tol=5e-3, abs_tol=2e-4)
    if isinstance(theirs, str) and isinstance(ours, str) and _OWN_ID.fullmatch(theirs):
        return _OWN_ID.fullmatch(ours) is not None or theirs == ours
    return bool(theirs == ours)


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:200]
