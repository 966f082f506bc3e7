"""A link with several gateways: tasks, losses, successors, settings."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from protocol.config.config import WorkerConfig
from protocol.wire import messages as m
from protocol.wire.facts import SystemPrompt
from protocol.wire.sharing import Demand, Recall, Returned, SettingsReport, Stay, Successor
from protocol.wire.side_tasks import SetLora, SetSystemPrompt, SystemPromptSet
from tests.envelopes import of_task
from tests.worker.link.pair import generate
from tests.worker.router import Gateway
from worker.engine.engine import Engine
from worker.engine.engine_config import EngineConfig
from worker.engine.fake.backend import FakeBackend
from worker.engine.task import EngineJob, Stop
from worker.link.gateways.connection import GatewayConnection
from worker.link.link import Link
from worker.link.outbound import OutboundQueue
from worker.link.tasks.side_tasks import SideTasks
from worker.prompt.prompt import PromptReader


class HeldReader(PromptReader):
    """Sets a system prompt only once it may."""

    may_set = threading.Event()
    may_set.set()

    def set_system_prompt(self, message: SetSystemPrompt) -> SystemPromptSet:
        """Wait, and set it."""
        self.may_set.wait(10.0)
        return super().set_system_prompt(message)


class Trio:
    """Two gateways and a link with its engine thread."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        ends = [f"ipc://{folder}/{name}" for name in "ab"]
        self.a, self.b = (Gateway(self.context, end, name=end) for end in ends)
        self.gateways = [self.a, self.b]
        self.backend = FakeBackend(
            WorkerConfig(backend="fake", n_slots=2, n_ctx=1 << 20, fake_step_ms=1)
        )
        self.outbound_queue = OutboundQueue()
        self.engine = Engine(
            self.backend, EngineConfig(n_slots=2, n_ctx=1 << 19), self.outbound_queue.put
        )
        self.thread = threading.Thread(target=self.engine.run)
        self.thread.start()
        hello = m.Hello(worker="w", epoch=1, model="fake")
        connections = [
            GatewayConnection(self.context, end, "w:1", number) for number, end in enumerate(ends)
        ]
        self.link = Link(connections, self.outbound_queue, hello)
        self.link.open()
        self.reader = HeldReader(self.backend, cuts_long=False)
        side = SideTasks(self.engine, self.backend, "")
        self.link.attach(self.engine, self.reader, self.backend.card, side)

    def until(self, holds: Callable[[], object]) -> None:
        """Let all sides work until something is so; gateways return what they are asked for."""
        for _ in range(3000):
            if holds():
                return
            self.outbound_queue.wake()
            self.link.turn()
            for gateway in self.gateways:
                n_before = len(gateway.of(Recall))
                gateway.poll(1)
                for recall in gateway.of(Recall)[n_before:]:
                    gateway.send(Returned(n=recall.n))
        raise AssertionError([gateway.heard[-3:] for gateway in self.gateways])

    def until_shared(self) -> None:
        """Wait until each gateway has one of the two slots."""
        self.until(lambda: credits_of(self.a) == credits_of(self.b) == 1)

    def close(self) -> None:
        """End everything."""
        self.engine.submit(Stop())
        self.thread.join()
        self.link.close("test is over")
        for gateway in self.gateways:
            gateway.close()
        self.outbound_queue.close()
        self.context.term()


def credits_of(gateway: Gateway) -> int:
    """Count the credits as a gateway does."""
    readies, heartbeats = gateway.of(m.Ready), gateway.of(m.Heartbeat)
    if not readies:
        return 0
    card = readies[-1].card
    granted = heartbeats[-1].granted if heartbeats else readies[-1].granted
    n_returned = sum(recall.n for recall in gateway.of(Recall))
    return card.n_slots + card.n_prefetch + granted - n_returned


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    """Return two gateways that share a worker."""
    found = Trio(tmp_path)
    yield found
    found.close()


def ended(gateway: Gateway, task_id: int) -> bool:
    return any(isinstance(one, m.Terminal) for one in of_task(gateway.heard, task_id))


def test_tasks_of_the_same_id_find_back_to_their_gateways(trio: Trio) -> None:
    trio.until_shared()
    trio.a.send(generate(1, "from a", n_predict=3))
    trio.b.send(generate(1, "from b", n_predict=5))
    trio.until(lambda: ended(trio.a, 1) and ended(trio.b, 1))
    for gateway, n in ((trio.a, 3), (trio.b, 5)):
        (done,) = gateway.of(m.Done)
        assert done.n_predicted == n
        assert len(gateway.of(m.Started)) == 1
    assert trio.link.is_idle


def test_a_lost_gateway_takes_only_its_own_tasks_with_it(trio: Trio) -> None:
    trio.until_shared()
    trio.a.send(generate(1, "from a", n_predict=-1))
    trio.b.send(generate(1, "from b", n_predict=-1))
    trio.until(lambda: trio.a.of(m.Started) and trio.b.of(m.Started))
    assert trio.b.of(m.Heartbeat)[-1].others == 1
    trio.a.close()
    trio.gateways.remove(trio.a)
    trio.until(lambda: not trio.b.of(m.Heartbeat)[-1].is_shared)
    assert credits_of(trio.b) == trio.backend.card.n_slots + trio.backend.card.n_prefetch
    assert trio.link.tasks.counts(1) == (0, 0, 1)
    assert trio.link.is_open is False  # no gateway has said `Opened` here
    trio.b.send(m.Envelope(m.TaskKey(1), m.Cancel()))
    trio.until(lambda: ended(trio.b, 1))


def test_log_lines_name_the_gateway_that_is_lost(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "worker.link")
    trio.until_shared()
    trio.a.send(generate(1, "from a", n_predict=-1))
    trio.until(lambda: trio.a.of(m.Started))
    for gateway in (trio.a, trio.b):
        gateway.close()
        trio.gateways.remove(gateway)
    events = ["gateway lost", "waiting for a gateway"]
    trio.until(lambda: {*events} <= {record.message for record in caplog.records})
    found = {record.message: record.__dict__.get("url") for record in caplog.records}
    assert [found[event] for event in events] == [trio.a.endpoint, trio.b.endpoint]
    (dropped,) = [one for one in caplog.records if one.message == "task dropped"]
    assert dropped.__dict__["task"] == 1


def test_a_gateway_that_hangs_up_again_and_again_is_logged_once(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "worker.link")
    trio.until_shared()
    trio.gateways.remove(trio.a)
    trio.a.hide()
    path = trio.a.endpoint.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        trio.a.close()
        n_dialled = 0

        def is_dialled_often() -> bool:
            nonlocal n_dialled
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                n_dialled += 1
            return n_dialled >= 4

        trio.until(is_dialled_often)
    waits = [one for one in caplog.records if one.message == "waiting for a gateway"]
    assert len(waits) <= 2  # the loss itself, and that it hangs up


def test_a_gateway_that_sends_beyond_its_credits_is_refused(trio: Trio) -> None:
    trio.until_shared()
    trio.a.send(*(generate(n, f"{n}", n_predict=20) for n in range(40)))
    trio.until(lambda: len(trio.a.of(m.Failed)) >= 40 - (4 + 16))
    refused = trio.a.of(m.Failed)
    assert {one.message for one in refused} == {
        "the gateway has sent this worker more tasks than it has credits for"
    }
    trio.b.send(generate(1, "from b", n_predict=2))
    trio.until(lambda: trio.b.of(m.Done))


def test_who_waits_gets_what_the_other_does_not_use(trio: Trio) -> None:
    trio.until_shared()
    trio.b.send(Demand(waiting=3, oldest_s=1.0))
    n_all = trio.backend.card.n_slots + trio.backend.card.n_prefetch
    trio.until(lambda: credits_of(trio.b) == n_all)
    assert credits_of(trio.a) == 0
    trio.b.send(Demand(waiting=-4, oldest_s=float("nan")))
    trio.a.send(Demand(waiting=1, oldest_s=float("inf")))
    trio.until(lambda: credits_of(trio.a) == 1)


def test_settings_are_told_to_every_gateway_and_the_newest_holds(trio: Trio) -> None:
    trio.until_shared()
    newer = SetSystemPrompt(prompt="newer", assistant_name="N", version=(2, "b"))
    older = SetSystemPrompt(prompt="older", version=(2, "a"))
    trio.b.send(m.Envelope(m.TaskKey(1), newer))
    trio.until(lambda: trio.a.of(SettingsReport) and trio.b.of(SettingsReport))
    trio.a.send(m.Envelope(m.TaskKey(1), older))
    trio.until(lambda: trio.a.of(SystemPromptSet))
    for gateway in trio.gateways:
        (told,) = gateway.of(SettingsReport)
        assert told.system == SystemPrompt(prompt="newer", assistant_name="N")
        assert told.system_version == (2, "b")


@pytest.mark.parametrize(
    "order", [SetSystemPrompt(prompt="new", version=(1, "a")), SetLora(scales=(), version=(1, "a"))]
)
def test_what_a_gateway_has_set_before_it_died_is_told_to_the_others(
    trio: Trio, order: SetSystemPrompt | SetLora
) -> None:
    trio.until_shared()
    may_end = trio.reader.may_set = threading.Event()

    def hold() -> None:
        may_end.wait(10.0)

    trio.engine.submit(EngineJob(m.TaskKey(99), hold))
    trio.a.send(m.Envelope(m.TaskKey(1), order))
    trio.until(lambda: any(trio.link.tasks.counts(0)[1:]))
    trio.a.close()
    trio.gateways.remove(trio.a)
    trio.until(lambda: len(trio.link._sessions.grants._shares) == 1)
    may_end.set()
    trio.until(lambda: trio.b.of(SettingsReport))
    (told,) = trio.b.of(SettingsReport)
    assert (1, "a") in (told.system_version, told.scales_version)
    trio.until(lambda: trio.link.tasks.is_idle)


def test_what_a_gateway_has_set_does_not_answer_the_one_after_it(trio: Trio) -> None:
    trio.until_shared()
    may_end = trio.reader.may_set = threading.Event()
    trio.a.send(m.Envelope(m.TaskKey(1), SetSystemPrompt(prompt="new", version=(1, "a"))))
    trio.until(lambda: trio.link.tasks.n_preparing)
    trio.a.close()
    trio.a.open()
    trio.a.heard.clear()
    trio.until(lambda: trio.a.of(m.Ready))
    may_end.set()
    trio.until(lambda: trio.a.of(SettingsReport))
    trio.until(lambda: trio.link.tasks.is_idle)
    assert not of_task(trio.a.heard, 1)


def test_a_successor_is_dialled_beside_and_the_old_one_not_again(trio: Trio) -> None:
    trio.until_shared()
    trio.a.send(generate(1, "goes on", n_predict=-1))
    trio.until(lambda: trio.a.of(m.Started))
    new = Gateway(trio.context, trio.a.endpoint, name="new")
    trio.gateways.append(new)
    trio.a.send(Successor())
    trio.until(lambda: new.of(m.Ready))
    assert new.of(m.Hello)[-1].connection == 2
    new.send(Demand(waiting=1))
    trio.until(lambda: credits_of(new) == 1)
    assert not ended(trio.a, 1)
    trio.a.send(m.Envelope(m.TaskKey(1), m.Cancel()))
    trio.until(lambda: ended(trio.a, 1))
    trio.a.close()
    trio.gateways.remove(trio.a)
    trio.until(lambda: len(trio.link._sessions) == 2)
    assert len(new.of(m.Hello)) == 1


def test_a_gateway_that_stays_keeps_its_first_connection(trio: Trio) -> None:
    trio.until_shared()
    trio.a.hide()
    trio.a.send(Successor())
    trio.until(lambda: len(trio.link._sessions) == 3)
    assert any(session.is_retired for session in trio.link._sessions)
    trio.a.send(Stay())
    trio.until(lambda: len(trio.link._sessions) == 2)
    trio.until_shared()


def test_a_successor_that_says_something_when_the_old_one_stays_ends_no_worker(trio: Trio) -> None:
    """Both have come before the link looks: the first message closes the socket of the second."""
    trio.until_shared()
    new = Gateway(trio.context, trio.a.endpoint, name="new")
    trio.gateways.append(new)
    trio.a.send(Successor())
    trio.until(lambda: new.of(m.Ready))
    trio.a.send(Stay())
    new.send(m.Ping())
    for session in trio.link._sessions:
        assert session.number == 1 or session.connection.dealer.poll(10_000)
    trio.link.turn()
    assert len(trio.link._sessions) == 2
    trio.until_shared()


def test_a_gateway_that_comes_while_the_worker_drains_gets_no_slots(trio: Trio) -> None:
    trio.until_shared()
    trio.a.send(generate(1, "long", n_predict=-1))
    trio.until(lambda: trio.engine.n_busy)
    trio.a.send(m.Drain())
    trio.until(lambda: trio.b.of(m.Draining))
    trio.b.close()
    trio.b.open()
    trio.b.heard.clear()
    trio.until(lambda: trio.b.of(m.Ready) or trio.b.of(m.Draining))
    trio.until(lambda: trio.b.of(m.Heartbeat))
    assert trio.b.of(m.Draining) and not trio.b.of(m.Ready)
    trio.a.send(m.Envelope(m.TaskKey(1), m.Cancel()))
    trio.until(lambda: ended(trio.a, 1))
    assert trio.link.is_idle


def test_a_second_way_to_the_same_gateway_is_given_up(trio: Trio) -> None:
    """The successor never came, and the old gateway listens again."""
    trio.until_shared()
    trio.a.send(Successor())
    # The test's gateway greets the second connection under the id of the first.
    trio.until(lambda: len(trio.a.of(m.Hello)) == 2)
    trio.until(lambda: len(trio.link._sessions) == 2)
    assert not any(session.is_retired for session in trio.link._sessions)
