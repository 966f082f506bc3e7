"""Workers that die, fall silent, send invalid frames or leave."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from gateway.pool.tasks.stream import Resumed
from protocol.errors import ErrorCode, TaskError
from protocol.wire import codec, side_tasks
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions, token_of
from tests.fakes.worker import FakeWorker, failed
from tests.gateway.rig import SLOW, Rig, one_more, reach, started_stream, text_of

pytestmark = pytest.mark.slow


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path, heartbeat_s=0.1) as opened:
        yield opened


async def test_a_dead_worker_is_noticed_at_once_and_its_streams_fail_if_they_may_not_go_on(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, heartbeat_s=0.1, continues=False) as rig:
        await stream_fails(rig)


async def stream_fails(rig: Rig) -> None:
    loop = asyncio.get_running_loop()
    async with rig.workers(SLOW) as [fake]:
        stream = await started_stream(rig, fake, "one two three", 1)
        died_at = loop.time()
        await fake.die()
        with pytest.raises(TaskError, match="lost") as caught:
            await stream.receive()
        assert caught.value.code is ErrorCode.LOST
        assert loop.time() - died_at < 0.5
    assert rig.metrics.losses["w0", "fake"] == 1


async def test_what_a_dead_worker_had_not_started_goes_to_another(rig: Rig) -> None:
    options = FakeOptions(name="a", n_slots=1, n_prefetch=0, free_running=False)
    async with rig.workers(options) as [doomed]:
        stream = rig.generate("second life")
        await doomed.got(m.Generate)
        async with one_more(rig, "b"):
            await doomed.die()
            assert await text_of(stream) == "second life"
            assert (stream.task.worker_name, stream.task.attempt) == ("b", 1)


async def test_a_restarted_worker_keeps_its_slots_and_its_work_is_remembered(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a"), FakeOptions(name="b")) as [first, _]:
        await rig.generate("x y", id_slot=0).result()
        await first.die()
        await rig.until(1)
        async with one_more(rig, "a"):
            done = await rig.generate("x y", id_slot=1).result()
            assert isinstance(done, m.Done)
            assert done.slot == 1
            await rig.pool.calls.slots()
    assert rig.metrics.stats.totals()["n_predicted"] == 4


async def test_a_stream_goes_on_at_another_worker_and_its_client_sees_nothing(rig: Rig) -> None:
    options = FakeOptions(name="a", n_slots=1, n_prefetch=0, free_running=False)
    async with rig.workers(options) as [doomed]:
        stream = await started_stream(rig, doomed, "one two three four", 2)
        async with one_more(rig, "b") as other:
            await doomed.die()
            assert await stream.receive() == Resumed()
            rest = [await stream.receive() for _ in range(3)]
            (again,) = [task for task in other.received if isinstance(task, m.Generate)]
    assert [delta.text for delta in rest[:2] if isinstance(delta, m.Delta)] == [" three", " four"]
    done = rest[2]
    assert isinstance(done, m.Done)
    assert (done.finish, done.n_predicted) == (m.Finish.EOS, 4)
    assert again.partial_answer is not None
    assert again.partial_answer.tokens == (token_of("one"), token_of(" two"))
    assert (again.partial_answer.n_text, again.partial_answer.seed) == (len("one two"), 7)
    assert again.partial_answer.predicted_ms > 0
    counts = rig.metrics
    assert counts.moves == {("fake", "lost", "begun"): 1}
    assert counts.reread == {("fake",): 6}
    assert rig.metrics.of_model("fake").gap.total > 0
    await rig.logged("task moved task=")


async def test_a_stream_waits_for_the_first_worker_that_comes(rig: Rig) -> None:
    async with rig.workers(SLOW) as [doomed]:
        stream = await started_stream(rig, doomed, "one two three", 1)
        await doomed.die()
        await rig.until(0)
    async with one_more(rig, "w0"):
        assert await text_of(stream) == " two three"


async def test_a_stream_goes_on_as_often_as_its_worker_dies(rig: Rig) -> None:
    words = " ".join(f"w{i}" for i in range(32))
    async with rig.workers(FakeOptions(name="w0", free_running=False)) as [first]:
        stream = await started_stream(rig, first, words, 1)
        await first.die()
        await rig.until(0)
    for i in range(10):
        slow = FakeOptions(name=f"w{i + 1}", free_running=False)
        async with rig.workers(slow) as [fake]:
            await fake.got(m.Generate)
            for _ in range(3):
                await fake.step()
                await reach(stream, m.Delta)
            await fake.die()
            await rig.until(0)
    async with one_more(rig, "last"):
        assert await text_of(stream) == " w31"
    assert stream.task.attempt == 11


async def test_the_worker_that_fails_a_part_of_an_answer_is_replaced(rig: Rig) -> None:
    options = FakeOptions(name="a", n_slots=1, n_prefetch=0, free_running=False)
    async with rig.workers(options) as [broken]:
        stream = await started_stream(rig, broken, "one two three", 2)
        async with one_more(rig, "b"):
            key = m.TaskKey(stream.task_id)
            await broken.send(m.Envelope(key, failed(ErrorCode.INTERNAL, "cannot compute")))
            assert await text_of(stream) == " three"
    assert rig.metrics.moves == {("fake", "failed", "begun"): 1}


async def test_what_a_killed_worker_had_of_an_embedding_another_makes(rig: Rig) -> None:
    options = FakeOptions(name="a", free_running=False, pooling="mean")
    async with rig.workers(options) as [doomed]:
        stream = rig.pool.submit(side_tasks.Embed(inputs=("text",)), model="fake")
        await doomed.got(side_tasks.Embed)
        async with FakeWorker(rig.endpoint, FakeOptions(name="b", pooling="mean")):
            await rig.until(2)
            await doomed.die()
            assert isinstance(await stream.result(), side_tasks.Embedded)


async def test_a_silent_worker_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.pool.network.connections._SILENT_MIN_S", 0.2)
    async with rig.workers(SLOW) as [fake]:
        stream = await started_stream(rig, fake, "one two three", 1)
        fake.go_silent()
        async with one_more(rig, "b"):
            assert await text_of(stream) == " two three"
            await rig.logged('worker lost worker=w0 model=fake cause="was silent')


async def test_a_worker_that_was_given_up_is_told_to_connect_anew(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pool.network.connections._SILENT_MIN_S", 0.2)
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


async def test_a_second_connection_of_a_worker_is_told_where_it_leads_and_not_taken(
    rig: Rig,
) -> None:
    async with rig.workers(SLOW) as [fake]:
        stream = rig.generate()
        await fake.got(m.Generate)
        second = FakeWorker(rig.endpoint, replace(SLOW, connection=1, ready=False))
        second.epoch = fake.epoch
        async with second:
            await second.got(m.Welcome)
            said = [*fake.received, *second.received]
            assert len({message.gateway for message in said if isinstance(message, m.Welcome)}) == 1
            await fake.step()
            await reach(stream, m.Delta)
            assert rig.pool.health().n_workers == 1
            assert rig.metrics.losses["w0", "fake"] == 0


async def test_a_worker_of_another_wire_version_is_refused(rig: Rig) -> None:
    async with FakeWorker(rig.endpoint, FakeOptions(name="old", wire_version=0)):
        await rig.logged('worker refused worker=old cause="it speaks another version')
        assert rig.pool.health().n_workers == 0


async def test_a_worker_that_is_busy_and_stands_still_is_given_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeats go on, only its step counter stands still: its tasks move as after a death."""
    monkeypatch.setattr("gateway.pool.network.worker_connection._STALL_MORE_S", 0.2)
    options = FakeOptions(name="a", n_slots=1, n_prefetch=1, free_running=False, stall_s=0.1)
    async with rig.workers(options) as [stuck]:
        monkeypatch.setattr(stuck, "reconnect", AsyncMock())  # it does not come back
        running = rig.generate("never ends")
        await stuck.got(m.Generate)
        await stuck.step()
        await reach(running, m.Delta)
        waiting = rig.generate("second life")
        async with one_more(rig, "b"):
            assert await text_of(running) == " ends"
            assert await text_of(waiting) == "second life"
    await rig.logged('worker lost worker=a model=fake cause="is stuck: busy in step 1')
    assert rig.metrics.losses["a", "fake"] >= 1


async def test_a_worker_that_is_busy_and_moves_is_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pool.network.worker_connection._STALL_MORE_S", 0.2)
    options = FakeOptions(name="a", n_slots=1, free_running=False, stall_s=0.1)
    async with rig.workers(options) as [slow]:
        stream = rig.generate("a b c d e f g h")
        await slow.got(m.Generate)
        for _ in range(8):
            await slow.step()
            await reach(stream, m.Delta)
            await slow.wait_heartbeats(2)
        assert rig.pool.health().n_workers == 1


async def test_a_broken_worker_counts_as_a_loss_and_what_it_never_began_goes_to_another(
    rig: Rig,
) -> None:
    options = FakeOptions(name="a", n_slots=1, n_prefetch=0, free_running=False)
    async with rig.workers(options) as [broken]:
        stream = rig.generate("second life")
        await broken.got(m.Generate)
        async with one_more(rig, "b"):
            await broken.leave("llama.cpp failed to compute", is_failure=True)
            assert await text_of(stream) == "second life"
    await rig.logged('worker lost worker=a model=fake cause="said bye: llama.cpp failed to compute')
    assert rig.metrics.losses["a", "fake"] == 1


async def test_a_worker_that_says_bye_is_no_loss(rig: Rig) -> None:
    async with rig.workers(FakeOptions()) as [fake]:
        await fake.leave()
        await rig.until(0)
    assert not rig.metrics.losses


async def test_a_draining_worker_finishes_what_nobody_else_can_and_gets_nothing_new(
    rig: Rig,
) -> None:
    async with rig.workers(FakeOptions(name="a", free_running=False)) as [old]:
        stream = rig.generate("last words")
        await old.got(m.Generate)
        await old.send(m.Draining())
        await rig.until(0)
        await old.step(3)
        assert await text_of(stream) == "last words"
        async with one_more(rig, "b"):
            other = rig.generate("x")
            assert await text_of(other) == "x"
            assert other.task.worker_name == "b"
            assert [report.id for report, _ in await rig.pool.calls.slots()] == [0, 1, 2, 3]


async def test_a_worker_that_was_cut_off_when_it_was_drained_is_told_again(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a")) as [fake]:
        rig.pool.drain_worker("a")
        await fake.got(m.Drain)
        fake._sent += 1  # a frame is lost: the connection is given up
        await fake.got(m.Drain, 2)
        assert fake.n_connections == 2
    async with rig.workers(FakeOptions(name="a")) as [restarted]:
        await restarted.got(m.Welcome)
        await restarted.wait_heartbeats(2)
        assert not any(isinstance(one, m.Drain) for one in restarted.received)


async def test_the_streams_of_a_draining_worker_go_on_elsewhere(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a", free_running=False)) as [old]:
        stream = await started_stream(rig, old, "one two three", 2)
        await old.send(m.Draining())
        await rig.until(0)
        async with one_more(rig, "b"):
            assert await text_of(stream) == " three"
            await old.got(m.Cancel)
            await old.step()  # ends the attempt, which returns its credit
            await old.leave()
            await rig.holds(
                lambda: repr(rig.pool).endswith("workers=1 tasks=0 waiting=0 taken=0>>")
            )
    assert rig.metrics.moves == {("fake", "drained", "begun"): 1}
    assert rig.metrics.n_late == 0


async def test_a_worker_that_leaves_because_it_failed_is_a_loss(rig: Rig) -> None:
    async with rig.workers(FakeOptions()) as [fake]:
        await fake.leave("failed", is_failure=True)
        await rig.until(0)
    assert rig.metrics.losses["w0", "fake"] == 1
    assert any(
        line.startswith('worker lost worker=w0 model=fake cause="said bye: failed" n_tasks=0')
        for line in rig.waiter.lines
    )


async def test_what_a_broken_worker_fails_unseen_another_answers(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a", free_running=False)) as [broken]:
        broken.engine.fail_next = m.Failed(code=ErrorCode.INTERNAL, message="no memory")
        stream = rig.generate("second try")
        await broken.got(m.Generate)
        async with one_more(rig, "b"):
            await broken.step()
            assert await text_of(stream) == "second try"
            assert (stream.task.worker_name, stream.task.attempt) == ("b", 1)


async def test_late_messages_are_dropped_and_counted(rig: Rig) -> None:
    async with rig.workers(FakeOptions(free_running=False)) as [fake]:
        stream = rig.generate()
        await fake.got(m.Generate)
        await fake.step()
        await reach(stream, m.Delta)
        stream.close()
        await fake.got(m.Cancel)
        await fake.step()
        assert rig.metrics.n_late == 0  # what ends a cancelled task is no surprise
        await fake.send(
            m.Envelope(m.TaskKey(stream.task_id), m.Delta(text="late")),
            m.Envelope(m.TaskKey(stream.task_id), m.Done(finish=m.Finish.EOS)),
        )
        answer = await rig.pool.submit(m.Tokenize(content="x"), model="fake").result()
        assert isinstance(answer, m.Tokenized)
        assert rig.metrics.n_late == 2
        assert repr(rig.pool).endswith("tasks=0 waiting=0 taken=0>>")


async def test_slots_of_a_mute_worker_are_told_by_the_gateway(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pool.worker_calls._INSPECT_LIMIT_S", 0.05)
    async with rig.workers(SLOW) as [fake]:
        stream = rig.generate()
        await fake.got(m.Generate)
        await fake.step()
        await reach(stream, m.Started)
        fake.go_silent()
        reports = [report for report, _ in await rig.pool.calls.slots()]
        assert [(slot.id, slot.is_processing, slot.task_id) for slot in reports] == [
            (0, True, stream.task_id),
            (1, False, -1),
        ]


async def test_a_gateway_that_stood_still_takes_no_worker_for_silent(rig: Rig) -> None:
    """As after SIGSTOP, or when its machine was suspended: frames come a moment later."""
    transport = rig.pool.transport
    async with rig.workers(SLOW) as [fake]:
        fake.go_silent()
        now = asyncio.get_running_loop().time() + 100
        for _ in range(2):
            transport.sweep(now)
            now += 0.5
        assert rig.pool.health().n_workers == 1
        for _ in range(6):  # 3 s, as many as a worker may be silent
            transport.sweep(now)
            now += 0.5
        assert rig.pool.health().n_workers == 0
