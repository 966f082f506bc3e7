"""Slot actions that wait: for a busy slot, or for the one that is being written."""

import threading
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Done, Finish, TaskKey
from protocol.wire.side_tasks import SlotAction
from tests.worker.link.tasks.test_side_tasks import (
    ID,
    PROMPT,
    Bench,
    acted,
    begin,
    end_of,
    run,
)
from worker.engine.task import Abort, AbortAll
from worker.link.tasks import slot_files
from worker.link.tasks.side_tasks import MAX_PENDING


def held_writes(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let files be written once the event is set."""
    opened, write = threading.Event(), slot_files.write

    def held(*args: Any) -> int:
        assert opened.wait(10)
        return write(*args)

    monkeypatch.setattr(slot_files, "write", held)
    return opened


def test_one_slot_is_copied_at_a_time_and_a_few_may_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.read(PROMPT, 0)
    opened, n_copies = held_writes(monkeypatch), 0
    copy = bench.rig.backend.states.copy

    def counted(seq: int) -> Any:
        nonlocal n_copies
        n_copies += 1
        return copy(seq)

    monkeypatch.setattr(bench.rig.backend.states, "copy", counted)
    for number in range(MAX_PENDING):
        begin(bench, 1000 + number, "save")
        bench.rig.turn()
    assert n_copies == 1
    with pytest.raises(TaskError) as caught:
        begin(bench, 1010, "save")
    assert caught.value.code is ErrorCode.OVERLOADED
    opened.set()
    bench.side.settle()
    for number in range(MAX_PENDING):
        acted(end_of(bench, 1000 + number))
    assert n_copies == MAX_PENDING
    acted(run(bench, 1011, "save"))


@pytest.mark.parametrize("action", ["save", "restore", "erase"])
def test_an_action_that_is_cancelled_ends_at_once_and_is_not_carried_out(
    tmp_path: Path, action: str
) -> None:
    bench = Bench(tmp_path, n_slots=2)
    bench.read("something to save", 1)
    acted(bench.do("save", 1, "old"))
    task = bench.rig.submit(PROMPT, slot=0, n_predict=20)
    bench.rig.turn()
    bench.start(action, 0, "old" if action == "restore" else "new")
    bench.rig.turn()
    bench.side.cancel(TaskKey(ID))
    bench.rig.engine.submit(Abort(TaskKey(ID)))
    bench.rig.envelopes.clear()
    bench.rig.turn()
    assert bench.rig.done(ID).finish is Finish.CANCELLED
    bench.rig.finish()
    assert bench.rig.terminals(ID) == bench.rig.terminals(task) == 1
    assert bench.read(PROMPT + " and more", 0) > len(PROMPT)
    assert not (tmp_path / "new").exists()


def test_an_action_is_cancelled_while_its_file_is_read_or_another_one_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.read(PROMPT, 0)
    acted(bench.do("save", 0))
    opened = held_writes(monkeypatch)
    begin(bench, 1000, "save")
    bench.rig.turn()
    begin(bench, 1001, "save", filename="new")
    bench.rig.turn()
    begin(bench, 1002, "restore", filename="nowhere")
    for number in (1001, 1002):
        bench.side.cancel(TaskKey(number))
        bench.rig.engine.submit(Abort(TaskKey(number)))
    bench.rig.turn()
    opened.set()
    bench.side.settle()
    acted(end_of(bench, 1000))
    for number in (1001, 1002):
        end = end_of(bench, number)
        assert isinstance(end, Done) and end.finish is Finish.CANCELLED
    assert not (tmp_path / "new").exists()
    assert bench.read(PROMPT + " and more", 0) > len(PROMPT)


@pytest.mark.parametrize("end", ["fails", "lost gateway"])
def test_a_save_that_waits_is_not_forgotten_with_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    bench = Bench(tmp_path, n_slots=2)
    bench.read(PROMPT, 0)
    bench.rig.submit("of another tenant", slot=1, salt="other", n_predict=0)
    bench.rig.finish()
    opened = held_writes(monkeypatch)
    begin(bench, 1000, "save")
    bench.rig.turn()
    bench.side.start(TaskKey(1001, 0, 1), SlotAction(action="save", filename="mine"), 1)
    begin(bench, 1002, "save")
    bench.rig.turn()
    if end == "lost gateway":
        bench.rig.submit("of another tenant", slot=1, salt="other", n_predict=50)
        bench.rig.turn()
    opened.set()
    bench.side.settle()
    bench.rig.turn()
    if end == "lost gateway":
        bench.side.drop(1)
        bench.rig.engine.submit(AbortAll(1))
    acted(end_of(bench, 1002))
    assert bench.rig.terminals(1001) == (end == "fails")


def test_actions_of_a_lost_gateway_leave_room_for_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.rig.submit(PROMPT, slot=0, n_predict=20)
    bench.rig.turn()
    for number in range(MAX_PENDING):
        begin(bench, 1000 + number, "save")
    bench.side.drop(0)
    bench.rig.engine.submit(AbortAll(0))
    bench.rig.turn()
    acted(run(bench, 1010, "save"))
