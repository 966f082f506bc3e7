"""The watchdog in the worker: what is stuck, and what was only paused."""

import time
from typing import Any

import pytest

from protocol.process.notify import Notifier
from worker import watchdog as module
from worker.engine.stats import EngineProgress
from worker.watchdog import Watchdog


def test_the_main_loop_turns_in_time_for_its_reports() -> None:
    assert Watchdog(Notifier(None, "", None), stall_s=10.0).turn_s == 1.0
    assert Watchdog(Notifier(None, "", 0.5), stall_s=0.5).turn_s == 0.125
    assert Watchdog(Notifier(None, "", 60.0), stall_s=60.0).turn_s == 1.0


class Ended(Exception):
    """The process would be gone."""


class Job:
    """A preparation that was given up."""

    label, limit_s = "Generate", 5.0

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s


class Bench:
    """A watchdog with a clock, an engine and a preparation of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.progress = EngineProgress()
        self.encoding_since = 0.0
        self.job: Job | None = None
        self.watchdog = Watchdog(Notifier(None, "", None), stall_s=10.0)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "_leave", self._leave)
        self.check()

    def _leave(self) -> None:
        raise Ended

    def stuck(self, limit_s: float) -> Job | None:
        """Answer as `Preparation` does."""
        if self.job is None or self.now - self.job.started_s <= self.job.limit_s + limit_s:
            return None
        return self.job

    def check(self) -> None:
        """Check once."""
        engine: Any = self
        preparation: Any = self
        self.watchdog.check(engine, preparation)

    def wait(self, seconds: float) -> None:
        """Check once a second, as the link turns."""
        for _ in range(round(seconds)):
            self.now += 1
            self.check()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


@pytest.mark.parametrize(
    ("kind", "limit_s"), [("engine", 10), ("preparation", 15), ("encoder", 600)]
)
def test_work_that_does_not_end_ends_the_worker(bench: Bench, kind: str, limit_s: int) -> None:
    begin(bench, kind)
    bench.wait(limit_s)
    with pytest.raises(Ended):
        bench.wait(1)


@pytest.mark.parametrize("kind", ["engine", "preparation"])
def test_work_that_was_paused_with_its_process_gets_its_time_anew_once(
    bench: Bench, kind: str
) -> None:
    """As when a container is paused for a minute: nothing has computed meanwhile."""
    begin(bench, kind)
    bench.wait(1)
    bench.now += 60
    bench.check()
    bench.wait(10)
    bench.now += 60
    with pytest.raises(Ended):
        bench.check()


def test_a_pause_spares_the_engine_and_a_preparation(bench: Bench) -> None:
    begin(bench, "engine")
    begin(bench, "preparation")
    bench.now += 60
    bench.check()
    bench.wait(10)
    with pytest.raises(Ended):
        bench.wait(1)


def test_a_gateway_that_asks_for_rare_heartbeats_hides_no_stuck_engine(bench: Bench) -> None:
    begin(bench, "engine")
    with pytest.raises(Ended):
        for _ in range(8):
            bench.now += 5
            bench.check()


def begin(bench: Bench, kind: str) -> None:
    if kind == "engine":
        bench.progress.begin()
    elif kind == "encoder":
        bench.encoding_since = bench.now
    else:
        bench.job = Job(bench.now)
