"""Tokens of quick steps leave together; everything else leaves at once."""

import itertools
from collections.abc import Sequence

import pytest

from protocol.messages import Delta, Done, Finish, Message, Started
from tests.worker.engines import Rig
from worker.engine.outbox import Outbox

FIRST, NEXT = Delta(task_id=1, n_predicted=1), Delta(task_id=1, n_predicted=2)


def outbox(interval_s: float) -> tuple[Outbox, list[tuple[Sequence[Message], float]]]:
    sent: list[tuple[Sequence[Message], float]] = []
    box = Outbox(lambda messages, due_s: sent.append((messages, due_s)), interval_s)
    box.append(Started(task_id=1, slot=0, n_prompt=1))
    box.send(0.0)
    sent.clear()
    return box, sent


def test_further_tokens_wait_for_a_while() -> None:
    box, _ = outbox(1e6)
    box.append(NEXT)
    assert box.can_wait
    box, _ = outbox(0.0)
    box.append(NEXT)
    assert not box.can_wait


@pytest.mark.parametrize("message", [FIRST, Done(task_id=1, finish=Finish.EOS)])
def test_first_tokens_and_ends_do_not_wait(message: Message) -> None:
    box, _ = outbox(1e6)
    box += [NEXT, message]
    assert not box.can_wait


def test_all_leave_at_once_if_there_is_more_than_text() -> None:
    box, sent = outbox(0.0)
    box.append(NEXT)
    box.send(5.0)
    box += [NEXT, Done(task_id=1, finish=Finish.EOS)]
    box.send(5.0)
    box.send(5.0)
    assert [(len(messages), due_s) for messages, due_s in sent] == [(1, 5.0), (2, 0.0)]
    assert not box


def told(rig: Rig, task_id: int) -> list[int]:
    """Return how many tokens of a task each delivery had."""
    counts = [
        sum(type(one) is Delta and one.task_id == task_id for one in messages)
        for messages in rig.steps
    ]
    return [n for n in counts if n]


def test_a_quick_answer_comes_in_two_deliveries_and_a_slow_one_by_tokens() -> None:
    quick, slow = Rig(emit_s=1e6), Rig()
    for rig in (quick, slow):
        rig.submit("tell", n_predict=8)
        rig.finish()
    assert told(quick, 1) == [1, 7]
    assert told(slow, 1) == [1] * 8
    assert quick.text(1) == slow.text(1)


def test_what_waits_leaves_before_a_prompt_is_read() -> None:
    rig = Rig(emit_s=1e6, n_batch=32, n_ctx=4096)
    rig.submit("tell", n_predict=200)
    while rig.engine.counters.n_decode < 10:
        rig.turn()
    assert told(rig, 1) == [1]
    long = rig.submit("x" * 1000, n_predict=1)
    rig.turn()
    assert sum(told(rig, 1)) == 10
    while rig.terminals(long) == 0:
        rig.turn()
    assert max(told(rig, 1)[2:]) == 1


def test_no_token_is_lost_when_a_task_is_cancelled() -> None:
    rig = Rig(emit_s=1e6)
    task_id = rig.submit("tell", n_predict=100)
    while rig.engine.counters.n_decode < 20:
        rig.turn()
    rig.cancel(task_id)
    rig.turn()
    numbers = [one.n_predicted for one in rig.of(task_id) if type(one) is Delta]
    assert numbers == list(itertools.islice(itertools.count(1), 20))
    assert rig.terminals(task_id) == 1
