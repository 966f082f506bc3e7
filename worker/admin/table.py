"""Writes the status of a pool as text."""

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = ("WORKER", "HOST", "MODEL", "STATE", "BUSY", "QUEUE", "TOKENS/S", "RESTARTS")
_RIGHT = frozenset({"BUSY", "QUEUE", "TOKENS/S", "RESTARTS"})


def table(status: Mapping[str, Any]) -> str:
    """Write the workers, what waits, the gateways, and the rolling change if there is one."""
    workers: Sequence[Mapping[str, Any]] = status["workers"]
    rows = [_HEAD, *(_row(worker) for worker in workers)]
    lines = _aligned(rows)
    waiting = {model: n for model, n in status["queue"].items() if n}
    queue = ", ".join(f"{n} for {model}" for model, n in sorted(waiting.items())) or "empty"
    gateways = ", ".join(_gateway(gateway) for gateway in status["gateways"])
    slots = f"{sum(w['n_busy'] for w in workers)} of {sum(w['n_slots'] for w in workers)} slots"
    rate = sum(w["tokens_per_s"] for w in workers)
    lines += ["", f"{status['status']}, {slots} busy, {rate:.1f} tokens/s, queue: {queue}"]
    lines.append(f"gateways: {gateways}")
    lines += [f"{worker['name']} died: {worker['why']}" for worker in workers if worker["why"]]
    if n_refused := status["n_quarantined"]:
        lines.append(f"requests refused because workers died with them: {n_refused}")
    if text := rollout_line(status["rollout"]):
        lines.append(f"{text} ({status['rollout']['seconds']:g} s)")
    return "\n".join(lines)


def _row(worker: Mapping[str, Any]) -> tuple[str, ...]:
    restarts = worker["n_restarts"]
    return (
        worker["name"],
        worker["host"],
        worker["model"],
        _state(worker),
        f"{worker['n_busy']}/{worker['n_slots']}",
        str(worker["n_waiting"]),
        f"{worker['tokens_per_s']:.1f}",
        "-" if restarts is None else str(restarts),
    )


def _state(worker: Mapping[str, Any]) -> str:
    state = str(worker["state"])
    if worker["is_ejected"]:
        state += ", ejected"
    if worker["progress"]:
        state += f" {worker['progress']:.0%}"
    if worker["retry_s"]:
        state += f", again in {worker['retry_s']:.0f} s"
    return state


def _gateway(gateway: Mapping[str, Any]) -> str:
    restarts = gateway["n_restarts"]
    counted = f", {restarts} restarts" if restarts else ""
    return f"{gateway['name']} ({gateway['state']}{counted})"


def rollout_line(rollout: Mapping[str, Any]) -> str:
    """Write a rolling change in one line; nothing if there was none."""
    if rollout["state"] == "none":
        return ""
    text = f"rolling change {rollout['state']}: {rollout['n_done']} of {rollout['n_total']} workers"
    if rollout["worker"]:
        text += f", {rollout['worker']}" + (f": {rollout['step']}" if rollout["step"] else "")
    if rollout["why"]:
        text += f"; {rollout['why']}"
    return text


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_cells(row, widths)).rstrip() for row in rows]


def _cells(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if name in _RIGHT else cell.ljust(width)
        for name, cell, width in zip(_HEAD, row, widths, strict=True)
    ]
