"""What has happened to processes and in a rolling change, by comparing two reports. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.pool.watch.events import EventKind
from protocol.process.control import FleetReport, ProcessReport, RolloutReport, RolloutState

_KINDS = {
    "waiting": EventKind.DIED,
    "quarantined": EventKind.QUARANTINED,
    "given up": EventKind.GIVEN_UP,
    "drained": EventKind.DRAINED,
}
"""State of a process to what has happened when it comes into that state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that has happened."""

    kind: EventKind
    name: str
    model: str = ""
    why: str = ""


def happenings(before: FleetReport, after: FleetReport) -> Iterator[Happening]:
    """List what has happened between two reports; nothing before the first one."""
    if not before.processes:
        return
    known = {one.name: one for one in before.processes}
    for one in after.processes:
        old = known.get(one.name)
        kind = _KINDS.get(one.state)
        has_died_again = old is not None and one.n_restarts > old.n_restarts
        if old is not None and kind is not None and one.state != old.state:
            yield Happening(kind=kind, name=one.name, model=one.model, why=_why(one))
        elif has_died_again and old is not None and old.state not in _KINDS:
            yield Happening(kind=EventKind.DIED, name=one.name, model=one.model, why=one.why)
    yield from _of_rollout(before.rollout, after.rollout)


def _why(process: ProcessReport) -> str:
    again = f"starts again in {process.retry_s:g} s" if process.retry_s else ""
    return "; ".join(part for part in (process.why, again) if part)


def _of_rollout(before: RolloutReport, after: RolloutReport) -> Iterator[Happening]:
    has_ended = after.state in (RolloutState.DONE, RolloutState.FAILED)
    is_new = after.number != before.number or after.state is not before.state
    if after.state is RolloutState.NONE or not (is_new or after.worker != before.worker):
        return
    text = f"{after.state}: {after.n_done} of {after.n_total} workers"
    why = f"{text}; {after.why}" if after.why else text
    if is_new or not has_ended:
        yield Happening(kind=EventKind.ROLLOUT, name=after.worker, why=why)
