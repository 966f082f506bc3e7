"""Ending the reasoning of a task that runs."""

import pytest

from protocol.wire.messages import TaskKey
from protocol.wire.side_tasks import EndReasoning, ReasoningEnded
from tests.worker.engines import Rig
from worker.engine.fake.sampler import FakeSampler
from worker.link.tasks.tasks import end_reasoning


@pytest.mark.parametrize("is_armed", [True, False])
def test_a_running_task_is_told_to_end_its_reasoning(is_armed: bool) -> None:
    rig = Rig(n_slots=2)
    target = rig.submit("hello there", n_predict=50, reasoning_control=is_armed)
    rig.submit("someone else", n_predict=50, reasoning_control=True)
    rig.engine.turn()
    call = end_reasoning(rig.engine, TaskKey(9), EndReasoning(target=target))
    assert call.work() == ReasoningEnded(is_running=True)
    samplers = [slot.run.sampler for slot in rig.engine.slots if slot.run is not None]
    told = [one.was_ended for one in samplers if isinstance(one, FakeSampler)]
    assert sorted(told) == [False, is_armed]


def test_a_task_that_has_ended_is_not_found() -> None:
    rig = Rig()
    target = rig.submit("hello", n_predict=1)
    rig.finish()
    call = end_reasoning(rig.engine, TaskKey(9), EndReasoning(target=target))
    assert call.work() == ReasoningEnded(is_running=False)
