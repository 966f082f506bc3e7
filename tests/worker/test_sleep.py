"""A worker that sleeps: its model goes when nobody asks, and comes back with the next task."""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from protocol.config.config import WorkerConfig
from protocol.errors import EXIT_CONFIG, EXIT_ERROR, EXIT_OK, ConfigError, ErrorCode
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import (
    LoraListed,
    SetLora,
    SetSystemPrompt,
    SlotAction,
    SystemPromptSet,
)
from tests.envelopes import of_task
from tests.worker.router import Gateway
from worker.engine.fake.backend import FakeBackend
from worker.engine_thread import Progress
from worker.link.tasks import slot_files
from worker.process import WorkerProcess
from worker.sleep import IdleTime

pytestmark = pytest.mark.slow

IDLE_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Let a worker that falls asleep not look for garbage among what all other tests hold."""
    gc.freeze()


class Stage:
    """A worker process over the fake backend, a gateway, and a clock that the test turns."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.now = 1000.0
        self.n_opened = self.n_closed = 0
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.n_ctx = 512
        self.code: int | None = None
        endpoint = f"ipc://{folder}/wire"
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gateway = Gateway(self.context, endpoint)
        config = WorkerConfig(
            name="w",
            backend="fake",
            n_slots=2,
            connect=(endpoint,),
            **{"sleep_idle_s": IDLE_S, **settings},
        )
        self.process = WorkerProcess(config, self._open, lambda: self.now)
        self.process.open()
        self.gateway.poll(10_000)
        self.welcome()
        self.until(lambda: bool(self.gateway.of(m.Ready)))

    def _open(self, config: WorkerConfig, _on_load: Progress) -> FakeBackend:
        """Load as slowly and as badly as the test wants."""
        self.n_opened += 1
        assert self.gate.wait(10)
        if self.fault is not None:
            raise self.fault
        stage = self

        class Counted(FakeBackend):
            def close(self) -> None:
                stage.n_closed += 1
                super().close()

        return Counted(WorkerConfig(**{**_fields(config), "n_ctx": self.n_ctx}))

    def welcome(self) -> None:
        """Open the slots, and let the worker not wait long for anything."""
        self.gateway.send(m.Welcome(gateway="g", heartbeat_s=0.02), m.Opened())

    def until(self, is_so: Callable[[], bool]) -> None:
        """Let both sides work until it is so, or until the process has ended."""
        deadline = time.monotonic() + 10
        while not is_so() and self.code is None:
            assert time.monotonic() < deadline, self.gateway.heard
            self.code = self.process.turn()
            self.gateway.poll()
        while self.code is not None and not is_so() and self.gateway.poll(200):
            """What it said last is still on its way."""

    def heartbeats(self, n: int = 3) -> list[m.Heartbeat]:
        """Wait for so many heartbeats from now on."""
        n_before = len(self._heartbeats)
        self.until(lambda: len(self._heartbeats) >= n_before + n)
        return self._heartbeats[n_before:]

    @property
    def _heartbeats(self) -> list[m.Heartbeat]:
        return self.gateway.of(m.Heartbeat)

    def fall_asleep(self) -> None:
        """Let the time pass and the model go."""
        n_before = self.n_closed
        self.heartbeats()
        self.now += IDLE_S
        self.until(lambda: self.n_closed > n_before and self._heartbeats[-1].is_sleeping)

    def ask(self, *tasks: m.Envelope) -> list[m.Terminal]:
        """Send tasks in one frame; return their ends."""
        self.gateway.send(*tasks)
        return self.ends(*(task.task.id for task in tasks))

    def ends(self, *ids: int) -> list[m.Terminal]:
        """Wait for the ends of tasks; return them in this order."""

        def found(task_id: int) -> list[m.Terminal]:
            said = of_task(self.gateway.heard, task_id)
            return [one for one in said if isinstance(one, m.Terminal)]

        self.until(lambda: all(map(found, ids)))
        assert all(len(found(one)) == 1 for one in ids), self.gateway.heard
        return [found(one)[0] for one in ids]

    def text(self, task_id: int) -> str:
        """Return what was generated for a task."""
        said = of_task(self.gateway.heard, task_id)
        return "".join(one.text for one in said if isinstance(one, m.Delta))

    def close(self) -> None:
        """End everything."""
        self.gate.set()
        self.gateway.send(m.Drain())
        self.until(lambda: False)
        self.process.close()
        self.gateway.close()
        self.context.term()


def _fields(config: WorkerConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in WorkerConfig.__dataclass_fields__}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A worker that sleeps after a minute."""
    stage = Stage(tmp_path, lora=("a.gguf", "b.gguf"))
    yield stage
    stage.close()


def generate(task_id: int, prompt: str = "tell me", n_predict: int = 6) -> m.Envelope:
    params = SamplingParams(n_predict=n_predict, temperature=0.0)
    return m.Envelope(m.TaskKey(task_id), m.Generate(prompt=prompt, params=params))


@given(steps=st.lists(st.tuples(st.floats(0, 50), st.booleans(), st.booleans()), max_size=30))
def test_the_time_is_over_only_after_so_long_without_a_task(
    steps: list[tuple[float, bool, bool]],
) -> None:
    idle = IdleTime(60)
    idle.begin(0.0)
    now = quiet_since = 0.0
    n_tasks = 0
    for passed_s, came, is_idle in steps:
        now += passed_s
        n_tasks += came
        if came or not is_idle:
            quiet_since = now
        assert idle.is_over(now, n_tasks=n_tasks, is_idle=is_idle) == (now - quiet_since >= 60)


def test_without_the_option_nobody_sleeps() -> None:
    idle = IdleTime(-1.0)
    assert not idle.is_over(1e9, n_tasks=0, is_idle=True)


def test_an_idle_worker_frees_its_model_and_stays(stage: Stage) -> None:
    stage.ask(generate(1))
    assert not stage.heartbeats()[-1].is_sleeping
    stage.fall_asleep()
    heartbeats = stage.heartbeats()
    assert all(heartbeat.is_sleeping and heartbeat.busy == 0 for heartbeat in heartbeats)
    assert heartbeats[-1].stats.n_kv_used > 0, "the figures stay what they were"
    assert (stage.n_opened, stage.n_closed, stage.code) == (1, 1, None)
    assert not stage.gateway.of(m.Bye)


def test_a_task_in_time_keeps_the_worker_awake(stage: Stage) -> None:
    for task_id in range(3):
        stage.now += IDLE_S - 1
        stage.ask(m.Envelope(m.TaskKey(task_id), m.Tokenize(content="x")))
    stage.heartbeats()
    assert stage.n_closed == 0


def test_a_task_wakes_the_worker_and_is_answered_as_before(stage: Stage) -> None:
    stage.ask(generate(1))
    stage.fall_asleep()
    (end,) = stage.ask(generate(2))
    assert isinstance(end, m.Done)
    assert stage.text(2) == stage.text(1) != ""
    assert stage.n_opened == 2
    assert not stage.heartbeats()[-1].is_sleeping
    assert len(stage.gateway.of(m.Ready)) == len(stage.gateway.of(m.Hello)) == 1


def test_looking_at_a_worker_neither_keeps_it_awake_nor_wakes_it(stage: Stage) -> None:
    stage.ask(m.Envelope(m.TaskKey(1), m.Tokenize(content="x")))
    for task_id in (2, 3):
        stage.now += IDLE_S / 2 - 1
        stage.ask(m.Envelope(m.TaskKey(task_id), m.Inspect()))
    assert stage.n_closed == 0
    stage.now += 3
    stage.until(lambda: stage.n_closed == 1 and stage.heartbeats()[-1].is_sleeping)
    (end,) = stage.ask(m.Envelope(m.TaskKey(9), m.Inspect()))
    assert isinstance(end, m.Failed) and end.code is ErrorCode.UNAVAILABLE
    assert stage.n_opened == 1


@pytest.mark.parametrize(
    "task",
    [
        m.Envelope(m.TaskKey(1), m.Tokenize(content="x")),
        m.Envelope(m.TaskKey(1), m.Detokenize(tokens=(65,))),
        m.Envelope(m.TaskKey(1), SetLora(scales=((1, 0.5),))),
        m.Envelope(m.TaskKey(1), SetSystemPrompt(prompt="Be brief.")),
    ],
    ids=lambda task: type(task.payload).__name__,
)
def test_whatever_needs_the_model_wakes_it(stage: Stage, task: m.Envelope) -> None:
    stage.fall_asleep()
    (end,) = stage.ask(task)
    assert not isinstance(end, m.Failed)
    assert stage.n_opened == 2


def test_a_loading_worker_lives_and_its_tasks_wait(stage: Stage) -> None:
    stage.fall_asleep()
    stage.gate.clear()
    stage.gateway.send(generate(1), generate(2), m.Envelope(m.TaskKey(3), m.Tokenize(content="x")))
    stage.until(lambda: stage.n_opened == 2)
    stage.until(lambda: stage.gateway.of(m.Heartbeat)[-1].waiting == 3)
    stage.now += 10 * IDLE_S
    assert {heartbeat.waiting for heartbeat in stage.heartbeats()} == {3}
    stage.gateway.send(m.Envelope(m.TaskKey(2), m.Cancel()))
    (cancelled,) = stage.ends(2)
    assert isinstance(cancelled, m.Done) and cancelled.finish is m.Finish.CANCELLED
    assert stage.heartbeats()[-1].waiting == 2
    stage.gate.set()
    done, tokens = stage.ends(1, 3)
    assert isinstance(done, m.Done) and isinstance(tokens, m.Tokenized)
    stage.heartbeats()
    assert stage.code is None and stage.n_opened == 2


def test_what_clients_have_set_outlives_the_model(stage: Stage) -> None:
    stage.ask(
        m.Envelope(m.TaskKey(1), SetLora(scales=((1, 0.5),))),
        m.Envelope(m.TaskKey(2), SetSystemPrompt(prompt="Be brief.", anti_prompt="U:")),
        generate(3),
    )
    for task_id in (4, 6):
        stage.fall_asleep()
        listed, done = stage.ask(m.Envelope(m.TaskKey(task_id), SetLora()), generate(task_id + 1))
        assert isinstance(listed, LoraListed) and isinstance(done, m.Done)
        assert [adapter.scale for adapter in listed.adapters] == [0.0, 0.5]
        assert stage.text(task_id + 1) == stage.text(3)
        assert done.n_prompt > len("tell me")
        assert done.n_cached == 0  # what the slots held is gone


def test_an_order_is_obeyed_though_nobody_waits_for_it(stage: Stage) -> None:
    stage.fall_asleep()
    stage.gate.clear()
    order = m.Envelope(m.TaskKey(1), SetSystemPrompt(prompt="Be brief."))
    stage.gateway.send(order, m.Envelope(m.TaskKey(1), m.Cancel()))
    stage.until(lambda: stage.n_opened == 2)
    stage.gate.set()
    (end,) = stage.ends(1)
    assert isinstance(end, SystemPromptSet)
    (done,) = stage.ask(generate(2))
    assert isinstance(done, m.Done) and done.n_prompt > len("Be brief.")


def test_counters_go_on(stage: Stage) -> None:
    stage.ask(generate(1))
    counted = stage.heartbeats()[-1].stats
    stage.fall_asleep()
    asleep = stage.heartbeats()[-1].stats
    assert (asleep.n_predicted, asleep.n_prompt) == (counted.n_predicted, counted.n_prompt)
    stage.ask(generate(2))
    assert stage.heartbeats()[-1].stats.n_predicted == 2 * counted.n_predicted


def test_a_gateway_that_comes_back_finds_it_asleep(stage: Stage) -> None:
    stage.fall_asleep()
    stage.gateway.close()
    stage.gateway.heard.clear()
    stage.gateway.open()
    stage.until(lambda: bool(stage.gateway.of(m.Ready)))
    stage.welcome()
    assert stage.heartbeats()[-1].is_sleeping
    assert stage.n_opened == 1
    (end,) = stage.ask(generate(1))
    assert isinstance(end, m.Done)


@pytest.mark.parametrize("action", ["save", "restore"])
def test_a_worker_stays_awake_until_the_file_of_a_slot_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Its gateway is gone meanwhile; the file's thread uses the model's library."""
    (tmp_path / "slots").mkdir()
    stage = Stage(tmp_path, slot_save_path=str(tmp_path / "slots"))
    has_begun, may_end = threading.Event(), threading.Event()

    def held(*_: object) -> None:
        has_begun.set()
        assert may_end.wait(10)
        raise OSError("no disk")

    monkeypatch.setattr(slot_files, "write" if action == "save" else "read", held)
    stage.ask(generate(1))
    task = SlotAction(action=action, filename="story")
    stage.gateway.send(m.Envelope(m.TaskKey(2), task, 0))
    stage.until(has_begun.is_set)
    stage.gateway.close()
    stage.gateway.open()
    stage.gateway.heard.clear()
    stage.until(lambda: bool(stage.gateway.of(m.Ready)))
    stage.welcome()
    stage.heartbeats()
    stage.now += IDLE_S
    assert not stage.heartbeats(5)[-1].is_sleeping and stage.n_closed == 0
    may_end.set()
    stage.until(lambda: stage.heartbeats()[-1].is_sleeping)
    stage.close()


@pytest.mark.parametrize(
    ("fault", "code"),
    [(ConfigError("cannot load it: no memory"), EXIT_CONFIG), (RuntimeError("odd"), EXIT_ERROR)],
)
def test_a_model_that_cannot_be_loaded_again_ends_the_worker_and_its_tasks(
    tmp_path: Path, fault: Exception, code: int
) -> None:
    stage = Stage(tmp_path)
    stage.fall_asleep()
    stage.fault = fault
    ends = stage.ask(generate(1), m.Envelope(m.TaskKey(2), m.Tokenize(content="x")))
    for end in ends:
        assert isinstance(end, m.Failed) and end.code is ErrorCode.UNAVAILABLE
        assert end.message == "The model could not be loaded again after sleeping"
    assert stage.code == code
    stage.close()


def test_a_file_that_has_become_another_model_ends_the_worker(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.fall_asleep()
    stage.n_ctx = 1024
    (end,) = stage.ask(generate(1))
    assert isinstance(end, m.Failed)
    assert stage.code == EXIT_CONFIG
    stage.close()


def test_a_sleeping_worker_drains_at_once_and_a_woken_one_after_its_task(tmp_path: Path) -> None:
    for tasks in ([], [generate(1)]):
        folder = tmp_path / str(len(tasks))
        folder.mkdir()
        stage = Stage(folder)
        stage.fall_asleep()
        stage.gateway.send(*tasks, m.Drain())
        stage.until(lambda: False)
        assert stage.code == EXIT_OK
        assert stage.n_opened == 1 + len(tasks)
        assert len(stage.gateway.of(m.Done)) == len(tasks)
        stage.close()


def test_the_line_ready_tells_the_context_over_all_slots(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.fall_asleep()
    with caplog.at_level(logging.INFO):
        stage.ask(generate(1))
    assert f"n_slots=2 n_ctx={stage.n_ctx}" in caplog.text
