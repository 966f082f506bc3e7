"""The worker ends itself when its engine's thread is stuck, whatever it does there."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from protocol.config.config import WorkerConfig
from protocol.errors import EXIT_RESTART
from protocol.wire import messages as m
from protocol.wire.messages import TaskKey
from protocol.wire.sampling import SamplingParams
from tests.worker.router import Gateway
from worker.engine.fake.backend import FakeBackend
from worker.engine.stats import EngineProgress
from worker.engine.task import EngineJob
from worker.process import WorkerProcess

pytestmark = pytest.mark.slow


class Exited(BaseException):
    """What `os._exit` raises here."""


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any, Any]]:
    """A worker whose engine is held up by whatever waits for `gate`."""
    codes: list[int] = []
    gate = threading.Event()

    def leave(code: int) -> None:
        codes.append(code)
        raise Exited

    monkeypatch.setattr(os, "_exit", leave)

    class Hanging(FakeBackend):
        def open_sampler(self, params: SamplingParams, *args: Any) -> Any:
            if params.grammar:
                gate.wait(20)
            return super().open_sampler(params, *args)

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = f"ipc://{tmp_path}/wire"
    gateway = Gateway(context, endpoint)
    config = WorkerConfig(name="w", backend="fake", connect=(endpoint,), stall_s=0.2)
    process = WorkerProcess(config, lambda config, _: Hanging(config))
    gateway.make_ready(process)

    def ends() -> list[int]:
        with pytest.raises(Exited):
            while True:
                assert process.turn() is None
        return codes

    yield gateway, process, ends
    gate.set()
    process._thread.stop()
    process._thread.join(5)
    process.close()
    gateway.close()
    context.destroy(linger=0)


def test_a_sampler_that_is_never_made_ends_the_worker(stuck: tuple[Any, Any, Any]) -> None:
    gateway, _, ends = stuck
    params = SamplingParams(grammar="root ::= never")
    gateway.send(m.Envelope(m.TaskKey(1), m.Generate(prompt="hello", params=params)))
    assert ends() == [EXIT_RESTART]


def test_a_light_call_that_never_returns_ends_the_worker(stuck: tuple[Any, Any, Any]) -> None:
    _, process, ends = stuck
    gate = threading.Event()

    def work() -> None:
        gate.wait(20)

    process._thread.engine.submit(EngineJob(TaskKey(1), work))
    assert ends() == [EXIT_RESTART]
    gate.set()


def test_the_limit_follows_the_slowest_step_up_to_a_bound() -> None:
    progress = EngineProgress(min_stall_s=10.0)
    limits = []
    for slowest_s in (0.1, 1.0, 5.0, 60.0):
        progress.took(slowest_s)
        limits.append(progress.stall_s)
    assert limits == [10.0, 20.0, 100.0, 120.0]
    assert EngineProgress(min_stall_s=300.0, slowest_s=60.0).stall_s == 300.0


def test_work_that_is_known_to_be_long_may_take_three_times_as_long() -> None:
    progress = EngineProgress(min_stall_s=10.0)
    limits = []
    for expected_s in (0.1, 1.0, 30.0, 100.0):
        progress.expect(expected_s)
        limits.append(progress.stall_s)
    assert limits == [10.0, 20.0, 120.0, 300.0]
    progress.begin()
    assert progress.stall_s == 10.0
