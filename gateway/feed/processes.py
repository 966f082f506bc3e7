"""Events of processes and of a rolling change, found by comparing two reports. Pure."""

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
"""State of a process to the event of coming into that state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEvent:
    """An event of a process, or of a rolling change."""

    kind: EventKind
    name: str
    model: str = ""
    why: str = ""


def process_events(before: FleetReport, after: FleetReport) -> Iterator[ProcessEvent]:
    """Yield the events between two reports; none before the first report."""
    if not before.processes:
        return
    named = {process.name: process for process in before.processes}
    known = {(process.name, process.pid): process for process in before.processes}
    for process in after.processes:
        # Two gateways have one name while one takes over from the other.
        old = known.get((process.name, process.pid)) or named.get(process.name)
        if old is None:
            continue
        kind = _KINDS.get(process.state)
        if kind is not None and process.state != old.state:
            yield ProcessEvent(kind=kind, name=process.name, model=process.model, why=_why(process))
        elif process.n_restarts > old.n_restarts and old.state not in _KINDS:
            yield ProcessEvent(
                kind=EventKind.DIED, name=process.name, model=process.model, why=process.why
            )
    yield from _of_rollout(before.rollout, after.rollout)


def _why(process: ProcessReport) -> str:
    again = f"starts again in {process.retry_s:g} s" if process.retry_s else ""
    return "; ".join(part for part in (process.why, again) if part)


def _of_rollout(before: RolloutReport, after: RolloutReport) -> Iterator[ProcessEvent]:
    has_ended = after.state in (RolloutState.DONE, RolloutState.FAILED)
    is_new = after.number != before.number or after.state is not before.state
    if after.state is RolloutState.NONE or not (is_new or after.worker != before.worker):
        return
    text = f"{after.state}: {after.n_done} of {after.n_total} workers"
    why = f"{text}; {after.why}" if after.why else text
    if is_new or not has_ended:
        yield ProcessEvent(kind=EventKind.ROLLOUT, name=after.worker, why=why)
