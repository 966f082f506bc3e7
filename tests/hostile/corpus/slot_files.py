"""Names of slot files and models that lead out of their folder, and numbers of slots."""

from typing import Any
from urllib.parse import quote

from tests.hostile.case import CaseList, HostileCase, Target

_NAMES = {
    "above": "../../etc/passwd",
    "absolute": "/etc/passwd",
    "NUL": "a\0b",
    "dot": ".",
    "dots": "..",
    "empty": "",
    "long": "a" * 5000,
    "newline": "a\nb",
    "backslash": "..\\..\\x",
    "a device": "/dev/zero",
    "reserved": "CON",
    "surrogate": "\ud800",
    "missing": "nothing.bin",
}


def cases(target: Target) -> list[HostileCase]:
    """Return actions on slots, and changes of models and adapters."""
    found = CaseList("slot_files")
    for label, name in _NAMES.items():
        for action in ("save", "restore"):
            found.post(f"{action} {label}", f"/slots/0?action={action}", {"filename": name})
        found.post(f"load {label}", "/models/load", {"model": name})
        found.post(f"unload {label}", "/models/unload", {"model": name})
    for number in ("-1", "99", "2147483648", "18446744073709551616", "x", "1.5", "%00", "0/0"):
        for action in ("save", "restore", "erase", "explode", ""):
            found.post(
                f"slot {number} {action}", f"/slots/{number}?action={action}", {"filename": "a.bin"}
            )
    odd: dict[str, Any] = {"null": None, "number": 5, "list": ["a"], "object": {}}
    for label, value in odd.items():
        found.post(f"filename is {label}", "/slots/0?action=save", {"filename": value})
    adapters: dict[str, Any] = {
        "an unknown adapter": [{"id": 99, "scale": 1}],
        "a negative adapter": [{"id": -1, "scale": 1}],
        "an adapter of 2**64": [{"id": 2**64, "scale": 1}],
        "an infinite scale": [{"id": 0, "scale": 1e308}],
        "many adapters": [{"id": 0, "scale": 1}] * 100_000,
    }
    for label, value in adapters.items():
        found.post(label, "/lora-adapters", value)
        found.complete(f"{label} in a request", lora=value)
    for label in ("a" * 5000, "../x", "\0", "a\r\nb"):
        found.add(f"model {label[:8]!r}", method="GET", path=f"/v1/models/{quote(label)}")
        found.add(f"props {label[:8]!r}", method="GET", path=f"/props?model={quote(label)}")
    return found.cases
