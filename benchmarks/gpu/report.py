"""The tables of a proof, as docs/running/performance.md takes them."""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.stages import STAGES, machine


def report(kit: Kit) -> str:
    """Return one line a stage, and the tables of what was measured."""
    found = {name: _found(kit, name) for name in STAGES}
    lines = [f"On {machine()}:", "", "| stage | found |", "|---|---|"]
    lines += [f"| {name} | {_short(one)} |" for name, one in found.items()]
    for name in ("slots", "workers"):
        if found[name]:
            lines += ["", f"| {name} | tokens/s |", "|---|---|", *_curve(found[name])]
    return "\n".join(lines)


def _found(kit: Kit, name: str) -> Any:
    path = kit.work / "found" / f"stage-{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _short(found: Any) -> str:
    if found is None:
        return "not done"
    plain = {key: one for key, one in found.items() if not isinstance(one, (dict, list))}
    return ", ".join(f"{key} {one}" for key, one in plain.items()) or f"{len(found)} points"


def _curve(points: dict[str, Any]) -> Iterator[str]:
    for count, one in points.items():
        speeds = [value for key, value in _numbers(one) if key == "tokens_per_s"]
        yield f"| {count} | {max(speeds, default=0):.1f} |"


def _numbers(found: Any) -> Iterator[tuple[str, float]]:
    """Yield every number of a nested result with its key."""
    if isinstance(found, dict):
        for key, one in found.items():
            if isinstance(one, (int, float)):
                yield key, float(one)
            yield from _numbers(one)
    elif isinstance(found, list):
        for one in found:
            yield from _numbers(one)
