"""What the reports of a supervisor say has happened."""

import itertools
from dataclasses import replace

import pytest

from gateway.feed.processes import process_events
from protocol.process.control import FleetReport, ProcessReport, RolloutReport, RolloutState


def report(state: str, n_restarts: int = 0, **more: object) -> FleetReport:
    fields = {"name": "h/w", "model": "m", "state": state, "n_restarts": n_restarts, **more}
    return FleetReport(processes=(ProcessReport(**fields),))  # type: ignore[arg-type]  # a test's choice


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (FleetReport(), report("waiting"), []),
        (report("ready"), report("ready"), []),
        (
            report("ready"),
            report("waiting", why="killed", retry_s=0.5),
            [("died", "killed; starts again in 0.5 s")],
        ),
        (report("waiting", why="killed"), report("waiting", why="killed", retry_s=0.2), []),
        (report("ready"), report("starting", 1, why="killed"), [("died", "killed")]),
        (report("waiting"), report("starting", 1), []),
        (
            report("ready"),
            report("quarantined", retry_s=600),
            [("quarantined", "starts again in 600 s")],
        ),
        (report("leaving"), report("drained"), [("drained", "")]),
        (
            report("starting"),
            report("given up", why="no such file"),
            [("given up", "no such file")],
        ),
    ],
)
def test_a_change_of_a_process_is_told(
    before: FleetReport, after: FleetReport, wanted: list[tuple[str, str]]
) -> None:
    assert [(one.kind, one.why) for one in process_events(before, after)] == wanted


def test_a_gateway_that_had_died_is_replaced_without_another_death() -> None:
    old = ProcessReport(name="gateway", model="", state="ready", pid=1, n_restarts=2)
    new = ProcessReport(name="gateway", model="", state="ready", pid=2)
    steps = [
        (old,),
        (old, replace(new, state="starting")),
        (old, new),
        (replace(old, state="leaving"), new),
        (new,),
    ]
    reports = [FleetReport(processes=processes) for processes in steps]
    pairs = itertools.pairwise(reports)
    assert [one for pair in pairs for one in process_events(*pair)] == []


def test_a_rolling_change_is_told_as_it_begins_goes_on_and_ends() -> None:
    process = report("ready").processes

    def at(state: RolloutState, n_done: int, worker: str = "", why: str = "") -> FleetReport:
        change = RolloutReport(
            state=state, number=1, n_done=n_done, n_total=2, worker=worker, why=why
        )
        return FleetReport(processes=process, rollout=change)

    reports = [
        report("ready"),
        at(RolloutState.RUNNING, 0, "w-1"),
        at(RolloutState.RUNNING, 0, "w-1"),
        at(RolloutState.RUNNING, 1, "w-2"),
        at(RolloutState.FAILED, 1, "w-2", "it died"),
        at(RolloutState.FAILED, 1, "", "it died"),
    ]
    told = [
        (one.name, one.why)
        for before, after in itertools.pairwise(reports)
        for one in process_events(before, after)
    ]
    assert told == [
        ("w-1", "running: 0 of 2 workers"),
        ("w-2", "running: 1 of 2 workers"),
        ("w-2", "failed: 1 of 2 workers; it died"),
    ]
