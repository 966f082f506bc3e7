"""The link between a ROUTER in the test and an engine over the fake backend."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import EndReasoning, ReasoningEnded
from tests.envelopes import of_task
from tests.worker.link.pair import Pair, generate


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A connected pair."""
    pair = Pair(f"ipc://{tmp_path}/wire")
    yield pair
    pair.close()


def test_a_worker_says_hello_and_then_ready(pair: Pair) -> None:
    pair.until(m.Hello)
    pair.attach()
    pair.until(m.Ready)
    order = [type(one) for one in pair.gateway.heard if not isinstance(one, m.Heartbeat)]
    assert order == [m.Hello, m.Ready]


def test_slots_are_open_once_the_gateway_says_so(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    assert not pair.link.is_open
    pair.gateway.send(m.Opened(), m.Envelope(m.TaskKey(1), m.Tokenize(content="x")))
    pair.until(m.Tokenized)
    assert pair.link.is_open


def test_a_task_goes_through_and_carries_the_counters(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    pair.gateway.send(m.Welcome(gateway="g"), generate(1, "hello"))
    (done,) = pair.until(m.Done)
    assert isinstance(done, m.Done)
    assert done.n_predicted == 4
    heartbeat = pair.until(m.Heartbeat)[-1]
    assert isinstance(heartbeat, m.Heartbeat)
    assert heartbeat.stats.n_predicted == 4
    assert pair.link.is_idle


def test_choices_of_one_frame_start_together_and_read_their_prompt_once(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    choices = [generate(i, "tell me something about it") for i in range(2)]
    pair.gateway.send(m.Welcome(gateway="g"), *choices)
    dones = pair.until(m.Done, len(choices))
    n = len("tell me something about it") + 1
    assert sorted(done.n_cached for done in dones) == [0, n]


def test_tokens_and_texts_need_no_slot(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    pair.gateway.send(
        m.Envelope(m.TaskKey(1), m.Tokenize(content="ab", with_pieces=True)),
        m.Envelope(m.TaskKey(2), m.Detokenize(tokens=(97,))),
    )
    (tokenized,) = pair.until(m.Tokenized)
    (detokenized,) = pair.until(m.Detokenized)
    assert tokenized == m.Tokenized.of((97, 98), (b"a", b"b"))
    assert detokenized == m.Detokenized(content="a")
    assert of_task(pair.gateway.heard, 1) == [tokenized]
    assert of_task(pair.gateway.heard, 2) == [detokenized]


def test_a_bad_prompt_fails_with_the_field(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    pair.gateway.send(m.Envelope(m.TaskKey(9), m.Generate(prompt=(-5,), params=SamplingParams())))
    (failed,) = pair.until(m.Failed)
    assert isinstance(failed, m.Failed)
    assert failed.param == "prompt" and of_task(pair.gateway.heard, 9) == [failed]


def test_cancel_ends_a_task(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    pair.gateway.send(generate(1, "hello", n_predict=-1))
    pair.until(m.Started)
    pair.gateway.send(m.Envelope(m.TaskKey(1), m.Cancel()))
    (done,) = pair.until(m.Done)
    assert isinstance(done, m.Done)
    assert done.finish in {m.Finish.CANCELLED, m.Finish.LIMIT}


def test_inspect_describes_the_slots(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    pair.gateway.send(m.Envelope(m.TaskKey(4), m.Inspect()))
    (inspected,) = pair.until(m.Inspected)
    assert isinstance(inspected, m.Inspected)
    assert [slot.id for slot in inspected.slots] == [0, 1]


def test_reasoning_is_ended_on_the_engines_thread(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    pair.gateway.send(m.Envelope(m.TaskKey(3), EndReasoning(target=99)))
    assert pair.until(ReasoningEnded) == [ReasoningEnded(is_running=False)]
    assert len(of_task(pair.gateway.heard, 3)) == 1


def test_a_new_gateway_gets_a_new_hello_and_no_old_words(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    pair.gateway.send(generate(1, "hello", n_predict=-1))
    pair.until(m.Started)
    first_peer = pair.gateway.peer
    pair.gateway.close()
    pair.gateway.open()
    pair.gateway.heard.clear()
    pair.until(m.Ready)
    assert pair.gateway.peer != first_peer
    pair.gateway.send(generate(2, "again"))
    (done,) = pair.until(m.Done)
    assert isinstance(done, m.Done)
    heard = pair.gateway.heard
    assert of_task(heard, 2)[-1] is done
    assert all(one.task.id == 2 for one in heard if isinstance(one, m.Envelope))


def test_a_missing_frame_starts_the_connection_over(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    first_peer = pair.gateway.peer
    pair.gateway.send(m.Ping(), seq=7)
    pair.gateway.heard.clear()
    pair.until(m.Hello)
    assert pair.gateway.peer != first_peer


def test_drain_is_announced_and_ends_when_idle(pair: Pair) -> None:
    pair.attach()
    pair.until(m.Ready)
    pair.gateway.send(generate(1, "hello"), m.Drain())
    pair.until(m.Draining)
    pair.until(m.Done)
    assert pair.link.draining
    assert pair.link.is_idle


def test_a_turn_goes_on_while_the_engine_speaks_and_ends_with_its_last_task(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.until(m.Heartbeat)
    pair.link.tasks.running.add(m.TaskKey(1))
    texts = iter(["b", "c"])
    outgoing = pair.link.tasks.running.outgoing

    def watched(items: Sequence[m.FrameItem]) -> tuple[list[m.FrameItem], bool]:
        out = outgoing(items)
        if text := next(texts, ""):
            pair.outbound_queue.put([m.Envelope(m.TaskKey(1), m.Delta(text=text))])
        elif not pair.link.is_idle:
            pair.outbound_queue.put([m.Envelope(m.TaskKey(1), m.Done(finish=m.Finish.LIMIT))])
        return out

    monkeypatch.setattr(pair.link.tasks.running, "outgoing", watched)
    pair.outbound_queue.put([m.Envelope(m.TaskKey(1), m.Delta(text="a"))])
    n_turns = 0
    while not pair.link.is_idle:
        pair.link.turn()
        n_turns += 1
    assert n_turns < 4, "one for each of four frames"
    said = pair.until(m.Delta, 3)
    assert [one.text for one in said] == ["a", "b", "c"]


def test_a_held_worker_says_so_until_it_is_admitted(tmp_path: Path) -> None:
    pair = Pair(f"ipc://{tmp_path}/wire", is_held=True)
    pair.attach()
    (ready,) = pair.until(m.Ready)
    assert isinstance(ready, m.Ready)
    assert ready.is_held
    pair.link.admit()
    pair.until(m.Admitted)
    pair.link.admit()
    pair.close()
    assert sum(isinstance(one, m.Admitted) for one in pair.gateway.heard) == 1
