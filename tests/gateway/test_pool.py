"""The pool with real sockets and fake workers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.metrics import Metrics
from gateway.pool import Pool
from gateway.stream import TaskStream
from protocol import codec
from protocol import messages as m
from protocol.config import GatewayConfig
from protocol.errors import ConfigError, ErrorCode, InvalidRequest, TaskError
from protocol.sampling import SamplingParams
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker, failed

SLOW = FakeOptions(free_running=False)


class Bell(logging.Handler):
    """Rings at every log line: whatever a test waits for in the gateway leaves one."""

    def __init__(self) -> None:
        super().__init__()
        self.rung = asyncio.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.rung.set()


class Rig:
    """A pool, its metrics, and the endpoint for fake workers."""

    def __init__(self, directory: Path, **config: float) -> None:
        self.bell = Bell()
        self.endpoint = f"ipc://{directory}/workers.sock"
        self.metrics = Metrics()
        self.pool = Pool(
            GatewayConfig(bind=(self.endpoint,), **config),  # type: ignore[arg-type]  # a test's choice
            self.metrics,
        )

    @asynccontextmanager
    async def workers(self, *options: FakeOptions) -> AsyncIterator[list[FakeWorker]]:
        """Run these workers, ready and known to the pool."""
        fakes = [FakeWorker(self.endpoint, one) for one in options]
        try:
            for fake in fakes:
                await fake.start()
            await self.until(len([one for one in options if one.ready]))
            yield fakes
        finally:
            for fake in fakes:
                await fake.die()

    async def __aenter__(self) -> "Rig":
        log = logging.getLogger("gateway")
        log.addHandler(self.bell)
        log.setLevel(logging.INFO)
        await self.pool.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.close()
        logging.getLogger("gateway").removeHandler(self.bell)

    async def until(self, n_workers: int) -> None:
        """Wait until so many workers take tasks."""
        await self.holds(lambda: self.pool.health().n_workers == n_workers)

    async def logged(self, text: str) -> None:
        """Wait until the gateway has said this."""
        await self.holds(lambda: any(text in line for line in self.bell.lines))

    async def holds(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is looked at after every log line."""
        async with asyncio.timeout(10):
            while not condition():
                self.bell.rung.clear()
                await self.bell.rung.wait()

    def generate(self, prompt: str = "one two three", **params: object) -> TaskStream:
        return self.pool.submit(
            m.Generate(task_id=0, prompt=prompt, params=SamplingParams(**params)),  # type: ignore[arg-type]  # a test's choice
            model="fake",
        )


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path, heartbeat_s=0.1) as one:
        yield one


@asynccontextmanager
async def one_more(rig: Rig, name: str) -> AsyncIterator[FakeWorker]:
    """Run one more worker beside those there are."""
    n = rig.pool.health().n_workers
    async with FakeWorker(rig.endpoint, FakeOptions(name=name)) as fake:
        await rig.until(n + 1)
        yield fake


async def text_of(stream: TaskStream) -> str:
    """Read a stream to its end."""
    text = ""
    while True:
        message = await stream.receive()
        if isinstance(message, m.Delta):
            text += message.text
        if isinstance(message, m.Terminal):
            return text


async def reach(stream: TaskStream, kind: type[m.Message]) -> m.Message:
    """Read a stream up to a message of this kind."""
    while True:
        message = await stream.receive()
        if isinstance(message, kind):
            return message


async def test_a_task_streams_from_a_worker(rig: Rig) -> None:
    async with rig.workers(FakeOptions()):
        stream = rig.generate("to be or not")
        started = await stream.receive()
        assert started == m.Started(task_id=stream.task_id, slot=0, n_prompt=4)
        assert await text_of(stream) == "to be or not"
    assert repr(rig.pool).endswith("tasks=0 waiting=0 leases=0>>")


async def test_many_tasks_share_the_workers_and_never_mix(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a"), FakeOptions(name="b")):
        streams = [rig.generate(f"task {i} of ten") for i in range(10)]
        texts = await asyncio.gather(*map(text_of, streams))
        assert texts == [f"task {i} of ten" for i in range(10)]
        assert {stream.worker for stream in streams} == {"a", "b"}


async def test_slot_numbers_are_pool_wide(rig: Rig) -> None:
    options = (FakeOptions(name="a", n_slots=2), FakeOptions(name="b", n_slots=2))
    async with rig.workers(*options):
        slots = []
        for i in range(4):
            done = await rig.generate(id_slot=i).result()
            assert isinstance(done, m.Done)
            slots.append(done.slot)
        assert slots == [0, 1, 2, 3]
        reports = await rig.pool.slots()
        assert [report.id for report, _ in reports] == [0, 1, 2, 3]


async def test_calls_need_no_slot(rig: Rig) -> None:
    async with rig.workers(SLOW):
        for _ in range(5):
            rig.generate()
        task = m.Tokenize(task_id=0, content="a b")
        answer = await rig.pool.submit(task, model="fake").result()
        assert isinstance(answer, m.Tokenized)
        assert len(answer.tokens) == 2


async def test_close_cancels_the_running_task_and_frees_the_slot(rig: Rig) -> None:
    async with rig.workers(FakeOptions(n_slots=1, n_prefetch=0, free_running=False)) as [fake]:
        first, second = rig.generate(), rig.generate("next")
        await fake.got(m.Generate)
        await fake.step()
        await reach(first, m.Delta)
        first.close()
        first.close()
        await fake.got(m.Cancel)
        await fake.step()
        await fake.got(m.Generate, 2)
        await fake.step(3)
        assert await text_of(second) == "next"


async def test_close_drops_a_waiting_task(rig: Rig) -> None:
    async with rig.workers(FakeOptions(n_slots=1, n_prefetch=0, free_running=False)):
        rig.generate()
        waiting = rig.generate()
        assert rig.pool.health().n_deferred == 1
        waiting.close()
        assert rig.pool.health().n_deferred == 0


async def test_a_failed_task_raises_what_the_worker_said(rig: Rig) -> None:
    async with rig.workers(FakeOptions()) as [fake]:
        fake.engine.fail_next = failed(ErrorCode.CONTEXT_EXCEEDED, "too long")
        with pytest.raises(TaskError, match="too long") as caught:
            await rig.generate().receive()
        assert caught.value.code is ErrorCode.CONTEXT_EXCEEDED


async def test_a_task_waits_only_so_long_for_a_slot(tmp_path: Path) -> None:
    options = FakeOptions(n_slots=1, n_prefetch=0, free_running=False)
    async with Rig(tmp_path, queue_timeout_s=0.1) as rig, rig.workers(options):
        rig.generate()
        with pytest.raises(TaskError, match=r"within 0\.1 s") as caught:
            await rig.generate().receive()
        assert caught.value.code is ErrorCode.OVERLOADED
        assert caught.value.detail["retry_after_s"] >= 1


async def test_a_full_queue_refuses(tmp_path: Path) -> None:
    options = FakeOptions(n_slots=1, n_prefetch=0, free_running=False)
    async with Rig(tmp_path, queue_size=1) as rig, rig.workers(options):
        rig.generate()
        rig.generate()
        with pytest.raises(TaskError, match="queue is full"):
            rig.generate()


async def test_a_dead_worker_is_noticed_at_once_and_its_streams_fail(rig: Rig) -> None:
    loop = asyncio.get_running_loop()
    async with rig.workers(SLOW) as [fake]:
        stream = rig.generate()
        await fake.got(m.Generate)
        await fake.step()
        await reach(stream, m.Delta)
        died_at = loop.time()
        await fake.die()
        with pytest.raises(TaskError, match="lost") as caught:
            await stream.receive()
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert loop.time() - died_at < 0.5
    assert rig.metrics.losses["w0", "fake"] == 1


async def test_what_a_dead_worker_had_not_started_goes_to_another(rig: Rig) -> None:
    one = FakeOptions(name="a", n_slots=1, n_prefetch=0, free_running=False)
    async with rig.workers(one) as [doomed]:
        stream = rig.generate("second life")
        await doomed.got(m.Generate)
        async with one_more(rig, "b"):
            await doomed.die()
            assert await text_of(stream) == "second life"
            assert (stream.worker, stream.attempt) == ("b", 1)


async def test_a_restarted_worker_keeps_its_slots_and_its_work_is_remembered(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a"), FakeOptions(name="b")) as [first, _]:
        await rig.generate("x y", id_slot=0).result()
        await first.die()
        await rig.until(1)
        async with one_more(rig, "a"):
            done = await rig.generate("x y", id_slot=1).result()
            assert isinstance(done, m.Done)
            assert done.slot == 1
            await rig.pool.slots()
    assert rig.metrics.stats.totals()["n_predicted"] == 4


async def test_a_silent_worker_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.peers._SILENT_MIN_S", 0.2)
    async with rig.workers(SLOW) as [fake]:
        stream = rig.generate()
        await fake.got(m.Generate)
        await fake.step()
        fake.go_silent()
        with pytest.raises(TaskError, match="lost"):
            await text_of(stream)
        assert rig.pool.health().n_workers == 0


async def test_a_worker_that_was_given_up_is_told_to_connect_anew(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.peers._SILENT_MIN_S", 0.2)
    async with rig.workers(SLOW) as [fake]:
        fake.go_silent()
        await rig.until(0)
        fake._silent = False
        await rig.until(1)
        assert fake.n_connections == 2


async def test_a_worker_that_outlived_its_gateway_joins_the_next(tmp_path: Path) -> None:
    async with Rig(tmp_path) as first, first.workers(FakeOptions()) as [fake]:
        await first.pool.close()
        async with Rig(tmp_path) as second:
            await second.until(1)
            assert fake.n_connections == 2
            assert second.metrics.n_late >= 1
            assert await text_of(second.generate("welcome back")) == "welcome back"


@pytest.mark.parametrize(
    "garbage", [b"", b"\xc1nonsense", codec.encode(99, [m.Ping()])], ids=["empty", "bytes", "gap"]
)
async def test_garbage_or_a_gap_ends_the_connection_and_nothing_else(
    rig: Rig, garbage: bytes
) -> None:
    async with rig.workers(FakeOptions(name="a"), FakeOptions(name="b")) as [fake, _]:
        await fake.send_raw(garbage)
        await fake.until(lambda worker: worker.n_connections == 2)
        await rig.until(2)
        assert await text_of(rig.generate("still here")) == "still here"


async def test_a_worker_of_another_wire_version_is_refused(rig: Rig) -> None:
    async with FakeWorker(rig.endpoint, FakeOptions(name="old", wire_version=0)):
        await rig.logged("worker=old refused=wire_version theirs=0")
        assert rig.pool.health().n_workers == 0


async def test_a_worker_that_says_bye_is_no_loss(rig: Rig) -> None:
    async with rig.workers(FakeOptions()) as [fake]:
        await fake.leave()
        await rig.until(0)
    assert not rig.metrics.losses


async def test_a_draining_worker_finishes_and_gets_nothing_new(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a", free_running=False)) as [old]:
        stream = rig.generate("last words")
        await old.got(m.Generate)
        await old.send(m.Draining())
        await rig.until(0)
        async with one_more(rig, "b"):
            other = rig.generate("x")
            assert await text_of(other) == "x"
            assert other.worker == "b"
            assert [report.id for report, _ in await rig.pool.slots()] == [0, 1, 2, 3]
            await old.step(3)
            assert await text_of(stream) == "last words"


async def test_late_messages_are_dropped_and_counted(rig: Rig) -> None:
    async with rig.workers(FakeOptions(free_running=False)) as [fake]:
        stream = rig.generate()
        await fake.got(m.Generate)
        await fake.step()
        await reach(stream, m.Delta)
        stream.close()
        await fake.got(m.Cancel)
        await fake.step()
        await fake.send(m.Delta(task_id=stream.task_id, text="late"))
        answer = await rig.pool.submit(m.Tokenize(task_id=0, content="x"), model="fake").result()
        assert isinstance(answer, m.Tokenized)
        assert rig.metrics.n_late == 2
        assert repr(rig.pool).endswith("tasks=0 waiting=0 leases=0>>")


async def test_slots_of_a_mute_worker_are_told_by_the_gateway(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pool._INSPECT_LIMIT_S", 0.05)
    async with rig.workers(SLOW) as [fake]:
        stream = rig.generate()
        await fake.got(m.Generate)
        await fake.step()
        await reach(stream, m.Started)
        fake.go_silent()
        reports = [report for report, _ in await rig.pool.slots()]
        assert [(one.id, one.is_processing, one.task_id) for one in reports] == [
            (0, True, stream.task_id),
            (1, False, -1),
        ]


async def test_health_follows_the_workers(rig: Rig) -> None:
    assert rig.pool.health().status == "loading model"
    loading = FakeOptions(n_slots=1, n_prefetch=0, ready=False, free_running=False)
    async with rig.workers(loading) as [fake]:
        await fake.got(m.Welcome)
        assert rig.pool.health().status == "loading model"
        await fake.ready()
        await rig.until(1)
        assert rig.pool.health().status == "ok"
        rig.generate()
        health = rig.pool.health()
        assert (health.status, health.slots_idle, health.slots_processing) == (
            "no slot available",
            0,
            1,
        )


async def test_a_pool_that_stays_empty_is_in_error(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pool._ALONE_S", -1.0)
    assert rig.pool.health().status == "error"


async def test_one_model_goes_by_any_name(rig: Rig) -> None:
    async with rig.workers(FakeOptions()):
        assert rig.pool.card("gpt-4").name == "fake"
        assert rig.pool.card(None).name == "fake"
        assert [card.name for card in rig.pool.cards()] == ["fake"]


async def test_of_several_models_one_must_be_named(rig: Rig) -> None:
    async with rig.workers(FakeOptions(), FakeOptions(name="b", model="other")):
        assert rig.pool.card("other").name == "other"
        with pytest.raises(InvalidRequest, match="model name is missing"):
            rig.pool.card(None)
        with pytest.raises(InvalidRequest, match="model 'x' not found") as caught:
            rig.pool.card("x")
        assert caught.value.param == "model"
        assert [card.name for _, card in await rig.pool.slots("other")] == ["other"] * 2


async def test_a_model_that_is_being_loaded_is_not_there_yet(rig: Rig) -> None:
    with pytest.raises(TaskError, match="Loading model"):
        rig.pool.card(None)
    async with rig.workers(FakeOptions(ready=False)) as [fake]:
        await fake.got(m.Welcome)
        with pytest.raises(TaskError, match="Loading model") as caught:
            rig.pool.card("fake")
        assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_drained_waits_for_what_runs(rig: Rig) -> None:
    async with rig.workers(FakeOptions(free_running=False)) as [fake]:
        stream = rig.generate("a b")
        await fake.got(m.Generate)
        rig.pool.drain()
        with pytest.raises(TaskError, match="shutting down"):
            rig.generate()
        drained = asyncio.create_task(rig.pool.drained())
        await fake.step(4)
        assert await text_of(stream) == "a b"
        await drained
        assert rig.pool.health().draining


async def test_close_of_the_pool_fails_what_is_left(rig: Rig) -> None:
    async with rig.workers(SLOW):
        stream = rig.generate()
        await rig.pool.close()
        with pytest.raises(TaskError, match="shutting down"):
            await stream.receive()


async def test_a_task_leaves_one_log_line(rig: Rig) -> None:
    async with rig.workers(FakeOptions()):
        await rig.generate("a b").result()
    lines = [line for line in rig.bell.lines if line.startswith("task=")]
    assert len(lines) == 1
    assert "model=fake worker=w0 slot=0 tokens=2+2 queue_ms=" in lines[0]
    assert lines[0].endswith("finish=eos")


@pytest.mark.parametrize(
    ("bind", "reason"),
    [
        ((), "no endpoint"),
        (("tcp://127.0.0.1:5555",), "only ipc"),
        (("ipc:///no/such/directory/x",), "/no/such/directory/x"),
    ],
)
async def test_an_endpoint_that_cannot_be_had_is_named(bind: tuple[str, ...], reason: str) -> None:
    pool = Pool(GatewayConfig(bind=bind), Metrics())
    with pytest.raises(ConfigError, match=reason):
        await pool.start()
    await pool.close()
