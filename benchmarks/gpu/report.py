"""The tables of a proof, as docs/running/performance.md takes them."""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.stages import STAGES, machine

_COLUMNS = "| server | tokens/s | TTFT p50, p99 ms | ITL p99 ms |"


def report(kit: Kit) -> str:
    """Return one line a stage, and the tables of what was measured."""
    found = {name: _found(kit, name) for name in STAGES}
    lines = [f"On {machine()}:", "", "| stage | found |", "|---|---|"]
    lines += [f"| {name} | {_short(one)} |" for name, one in found.items()]
    for name in ("slots", "workers"):
        if found[name]:
            lines += ["", f"| {name} {_COLUMNS}", "|---|---|---|---|---|", *_curve(found[name])]
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
    """Write a line for each server and count."""
    for count, found in points.items():
        for one in found["points"]:
            ttft = f"{one['ttft_p50_ms']:.0f}, {one['ttft_p99_ms']:.0f}"
            figures = f"{one['tokens_per_s']:.0f} | {ttft} | {one['itl_p99_ms']:.0f}"
            yield f"| {count} | {one['setting']['side']} | {figures} |"
