"""Saving, restoring and erasing a slot, in llama-server's words."""

from collections.abc import Mapping
from typing import Any

from protocol.errors import InvalidRequest
from protocol.filenames import is_valid_filename
from protocol.wire.side_tasks import SlotActed

_FILED = ("save", "restore")
_ACTIONS = (*_FILED, "erase")


def no_such_slot() -> InvalidRequest:
    """Return the error for a number that no slot has."""
    return InvalidRequest("Invalid slot ID", param="id_slot")


def read_slot_id(text: str) -> int:
    """Read the slot's number in the path."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise no_such_slot()
    return int(text)


def read_action(text: str | None) -> str:
    """Read the action in the query."""
    if text not in _ACTIONS:
        raise InvalidRequest("Invalid action", param="action")
    return text


def needs_filename(action: str) -> bool:
    """Return whether the body of the action names a file."""
    return action in _FILED


def read_filename(body: Mapping[str, Any]) -> str:
    """Read the name of a file in the folder of saved slots."""
    name = body.get("filename")
    if name is None:
        raise InvalidRequest("key 'filename' not found", param="filename")
    if not isinstance(name, str) or not is_valid_filename(name):
        raise InvalidRequest("Invalid filename", param="filename")
    return name


def slot_acted(action: str, slot_id: int, filename: str, acted: SlotActed) -> dict[str, Any]:
    """Return the answer to an action."""
    if action == "erase":
        return {"id_slot": slot_id, "n_erased": acted.n_tokens}
    tokens, size = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
    return {
        "id_slot": slot_id,
        "filename": filename,
        tokens: acted.n_tokens,
        size: acted.n_bytes,
        "timings": {f"{action}_ms": acted.time_ms},
    }
