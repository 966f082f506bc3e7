"""What the engine says leaves after each step, and none of it waits for more."""

import itertools

from protocol.wire.messages import Delta
from tests.envelopes import payloads
from tests.worker.engines import Rig


def test_each_token_is_a_delivery_of_its_own() -> None:
    rig = Rig()
    rig.submit("tell", n_predict=8)
    rig.finish()
    told = [len(payloads(messages, Delta)) for messages in rig.steps]
    assert [n for n in told if n] == [1] * 8


def test_no_token_is_lost_when_a_task_is_cancelled() -> None:
    rig = Rig()
    task_id = rig.submit("tell", n_predict=100)
    while rig.engine.counters.n_decode < 20:
        rig.turn()
    rig.cancel(task_id)
    rig.turn()
    numbers = [one.n_predicted for one in rig.of(task_id) if type(one) is Delta]
    assert numbers == list(itertools.islice(itertools.count(1), 20))
    assert rig.terminals(task_id) == 1
