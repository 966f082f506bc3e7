"""What /slots is told of a slot: while it works, and afterwards of what it did last."""

import pytest

from protocol.wire.facts import SlotReport
from protocol.wire.messages import Finish, Inspected, TaskKey
from tests.worker.engines import Rig
from worker.engine.task import Report
from worker.engine_settings import shows_texts


def reported(rig: Rig) -> SlotReport:
    """Ask as /slots does."""
    rig.engine.submit(Report(TaskKey(99)))
    rig.turn()
    (answer,) = [one for one in rig.emitted if isinstance(one, Inspected)][-1:]
    return answer.slots[0]


def test_an_idle_slot_tells_of_its_last_task() -> None:
    rig = Rig(n_slots=1)
    assert reported(rig) == SlotReport(id=0, is_processing=False)
    task_id = rig.submit("tell", n_predict=3)
    rig.turn()
    running = reported(rig)
    assert running.is_processing and running.has_next_token and running.finish == ""
    rig.finish()
    told = reported(rig)
    assert not told.is_processing and not told.has_next_token
    assert (told.task_id, told.finish, told.n_decoded, told.n_remain) == (
        task_id,
        Finish.LIMIT,
        3,
        0,
    )
    assert told.n_prompt_processed + told.n_cached == told.n_prompt
    assert told.n_past == len(rig.engine.slots[0].tokens) > told.n_prompt
    assert (told.prompt, told.generated) == (None, "")


def test_a_worker_that_is_debugged_tells_the_texts() -> None:
    rig = Rig(n_slots=1, shows_texts=True)
    assert reported(rig).prompt is None
    task_id = rig.submit("tell", n_predict=4)
    rig.turn()
    assert "tell" in (reported(rig).prompt or "")
    rig.finish()
    told = reported(rig)
    assert "tell" in (told.prompt or "")
    assert told.generated and rig.text(task_id).startswith(told.generated)


@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("2x", True), ("0", False), ("", False)])
def test_the_variable_is_a_number(value: str, is_on: bool) -> None:
    assert shows_texts({"LLAMA_SERVER_SLOTS_DEBUG": value}) is is_on
