"""Slot actions and adapters between link and engine, over the fake backend."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Failed, TaskKey, Terminal
from protocol.wire.side_tasks import LoraListed, SetLora, SlotActed, SlotAction
from tests.worker.engines import Rig, blocks_of, said
from worker.link.tasks import slot_files
from worker.link.tasks.packed_tokens import NOT_A_STATE
from worker.link.tasks.side_tasks import SideTasks

PROMPT = "a prompt long enough to be worth keeping"
ID = 1000


class Bench:
    """A rig whose side tasks write into a folder."""

    def __init__(self, folder: Path, n_slots: int = 2, quota_mib: int = 0) -> None:
        self.rig = Rig(n_slots=n_slots)
        self.side = SideTasks(self.rig.engine, self.rig.backend, str(folder), quota_mib)

    def start(self, action: str, slot: int, name: str = "story") -> None:
        self.side.start(TaskKey(ID), SlotAction(action=action, filename=name), slot)
        self.side.settle()

    def do(self, action: str, slot: int, name: str = "story") -> Terminal:
        """Start an action and turn until it has ended."""
        self.rig.envelopes.clear()
        self.start(action, slot, name)
        return self.turn_until(lambda: self.answer)

    @property
    def answer(self) -> Terminal | None:
        found = [one for one in self.rig.of(ID) if isinstance(one, Terminal)]
        return found[0] if found else None

    def turn_until(self, found: Callable[[], Terminal | None]) -> Terminal:
        while (answer := found()) is None:
            self.rig.turn()
            self.side.settle()
        return answer

    def read(self, prompt: str, slot: int) -> int:
        """Have a slot read a prompt; return how much of it was cached."""
        task = self.rig.submit(prompt, slot=slot, n_predict=0)
        self.rig.finish()
        return self.rig.started(task).n_cached


def acted(answer: Terminal) -> SlotActed:
    assert isinstance(answer, SlotActed), answer
    return answer


def test_a_slot_is_saved_erased_and_restored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.read(PROMPT, 0)
    n_tokens = len(PROMPT) + 1
    saved = acted(bench.do("save", 0))
    assert (saved.n_tokens, saved.n_bytes) == (n_tokens, (tmp_path / "story").stat().st_size)
    assert acted(bench.do("erase", 0)).n_tokens == n_tokens
    assert acted(bench.do("erase", 0)).n_tokens == 0
    restored = acted(bench.do("restore", 0))
    assert (restored.n_tokens, restored.n_bytes) == (saved.n_tokens, saved.n_bytes)
    assert bench.read(PROMPT + " and more", 0) == n_tokens


@pytest.mark.parametrize("action", ["save", "restore", "erase"])
def test_an_action_waits_for_a_busy_slot_and_comes_before_the_next_task(
    tmp_path: Path, action: str
) -> None:
    bench = Bench(tmp_path, n_slots=2)
    bench.read("something to save", 1)
    bench.do("save", 1)
    first = bench.rig.submit(PROMPT, slot=0, n_predict=6)
    bench.rig.turn()
    second = bench.rig.submit("the next one", slot=0, n_predict=6)
    bench.rig.envelopes.clear()
    bench.start(action, 0)
    bench.turn_until(lambda: bench.answer)
    ended = [one.task.id for one in bench.rig.envelopes if isinstance(one.payload, Terminal)]
    assert ended.index(first) < ended.index(ID)
    bench.rig.finish()
    assert bench.rig.terminals(second) == 1


def test_an_action_is_done_as_soon_as_the_last_task_has_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.rig.submit(PROMPT, slot=0, n_predict=3)
    bench.rig.turn()
    bench.start("erase", 0)
    answer = bench.turn_until(lambda: bench.answer)
    assert acted(answer).n_tokens > len(PROMPT)


def test_a_failed_restore_empties_the_slot(tmp_path: Path) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.read(PROMPT, 0)
    answer = bench.do("restore", 0, "nowhere")
    assert isinstance(answer, Failed)
    assert answer.code is ErrorCode.INVALID_REQUEST
    assert answer.message == f"Unable to restore slot: {NOT_A_STATE}"
    assert bench.read(PROMPT, 0) == 0


def test_a_state_that_the_backend_refuses_empties_the_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, n_slots=1)
    stamp = slot_files.StateStamp(version=3, facts=bench.rig.backend.states.facts)
    slot_files.write(tmp_path / "story", slot_files.SavedSlot([1, 2], b"of no use"), stamp)
    bench.read(PROMPT, 0)
    answer = bench.do("restore", 0)
    assert isinstance(answer, Failed)
    assert answer.message == f"Unable to restore slot: {NOT_A_STATE}"
    assert bench.read(PROMPT, 0) == 0
    monkeypatch.setattr(bench.rig.backend.states, "needs_checkpoints", True)
    answer = bench.do("restore", 0)
    assert isinstance(answer, Failed) and answer.code is ErrorCode.INVALID_REQUEST
    assert answer.message.startswith(f"Unable to restore slot: {NOT_A_STATE}. ")
    assert "sliding windows" in answer.message and "`-np`" in answer.message


def test_a_disk_that_takes_nothing_gives_an_error_and_no_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "gone", n_slots=1)
    bench.read(PROMPT, 0)
    answer = bench.do("save", 0)
    assert isinstance(answer, Failed)
    assert answer.code is ErrorCode.INTERNAL
    assert answer.message == "Unable to save slot: No such file or directory"
    assert bench.read(PROMPT + " and more", 0) > 0


@pytest.mark.parametrize(
    ("action", "slot", "name", "message"),
    [
        ("save", 2, "story", "Invalid slot ID"),
        ("save", -1, "story", "Invalid slot ID"),
        ("steal", 0, "story", "Invalid action"),
        ("save", 0, "../story", "Invalid filename"),
        ("restore", 0, "a/b", "Invalid filename"),
    ],
)
def test_what_the_gateway_should_have_refused_is_refused_here_too(
    tmp_path: Path, action: str, slot: int, name: str, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        Bench(tmp_path).start(action, slot, name)


def test_without_a_folder_nothing_is_done() -> None:
    rig = Rig()
    with pytest.raises(TaskError, match="--slot-save-path") as caught:
        SideTasks(rig.engine, rig.backend, "").start(TaskKey(ID), SlotAction(action="erase"), 0)
    assert caught.value.code is ErrorCode.NOT_SUPPORTED


def test_scales_are_set_and_listed() -> None:
    rig = Rig(lora=("one.gguf", "two.gguf"))
    side = SideTasks(rig.engine, rig.backend, "")
    found = []
    for scales in (None, ((1, 0.5),), None, ()):
        side.start(TaskKey(ID), SetLora(scales=scales))
        rig.turn()
        answer = rig.of(ID)[-1]
        assert isinstance(answer, LoraListed)
        found.append([(one.id, one.path, one.scale) for one in answer.adapters])
    half = [(0, "one.gguf", 0.0), (1, "two.gguf", 0.5)]
    off = [(0, "one.gguf", 0.0), (1, "two.gguf", 0.0)]
    assert found == [[(0, "one.gguf", 1.0), (1, "two.gguf", 1.0)], half, half, off]


# ---- whose slot, whose file, and how many -------------------------------------------------------


def begin(bench: Bench, task_id: int, kind: str, **fields: Any) -> None:
    action = SlotAction(action=kind, **{"filename": "story"} | fields)
    bench.side.start(TaskKey(task_id), action, 0)


def end_of(bench: Bench, task_id: int) -> Terminal:
    def found() -> Terminal | None:
        return next((one for one in bench.rig.of(task_id) if isinstance(one, Terminal)), None)

    return bench.turn_until(found)


def run(bench: Bench, task_id: int, kind: str, **fields: Any) -> Terminal:
    begin(bench, task_id, kind, **fields)
    bench.side.settle()
    return end_of(bench, task_id)


def test_a_slot_is_saved_by_those_alone_whose_prompt_it_holds(tmp_path: Path) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.rig.submit(PROMPT, slot=0, n_predict=0, salt="mine")
    bench.rig.finish()
    for number, salt in enumerate(("", "yours")):
        refused = run(bench, 1000 + number, "save", salt=salt)
        assert isinstance(refused, Failed)
        assert refused.param == "id_slot"
    assert list(tmp_path.iterdir()) == []
    erased = run(bench, 1010, "erase", owner="you", salt="yours")
    assert isinstance(erased, Failed)
    acted(run(bench, 1011, "save", salt="mine"))


def test_a_restored_slot_belongs_to_whoever_restored_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.rig.submit(PROMPT, slot=0, n_predict=0, salt="mine")
    bench.rig.finish()
    acted(run(bench, 1000, "save", salt="mine"))
    bench.rig.submit("something else altogether", slot=0, n_predict=0, salt="yours")
    bench.rig.finish()
    stolen = run(bench, 1001, "restore", salt="yours")
    assert isinstance(stolen, Failed)
    assert "another namespace" in stolen.message
    acted(run(bench, 1002, "restore", salt="mine"))
    found = {}
    for salt in ("yours", "mine"):
        task = bench.rig.submit(PROMPT + " and more", n_predict=0, salt=salt, slot=0)
        bench.rig.finish()
        found[salt] = bench.rig.started(task).n_cached
        acted(run(bench, 1003 + len(found), "restore", salt="mine"))
    assert found == {"yours": 0, "mine": len(PROMPT) + 1}


def test_every_owner_has_a_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.read(PROMPT, 0)
    acted(run(bench, 1000, "save", owner="a1"))
    assert isinstance(run(bench, 1001, "restore", owner="b2"), Failed)
    assert isinstance(run(bench, 1002, "restore"), Failed)
    acted(run(bench, 1003, "restore", owner="a1"))
    with pytest.raises(TaskError, match="Invalid owner"):
        begin(bench, 1004, "save", owner="../x")


def test_an_owner_has_a_quota(tmp_path: Path) -> None:
    bench = Bench(tmp_path, n_slots=1, quota_mib=2)
    bench.read(PROMPT, 0)
    for number in range(3):
        last = run(bench, 1000 + number, "save", owner="a1")
        acted(last)  # the same file again
    saved = [
        run(bench, 1010 + number, "save", owner="a1", filename=f"f{number}") for number in range(3)
    ]
    assert [type(one) for one in saved] == [SlotActed, Failed, Failed]
    assert isinstance(saved[2], Failed)
    assert "more than 2 MiB" in saved[2].message


def test_a_restored_slot_is_announced_to_the_gateways_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.read(PROMPT, 0)
    known = blocks_of(PROMPT)
    assert known <= said(bench.rig)
    acted(bench.do("save", 0))
    acted(bench.do("erase", 0))
    assert not (said(bench.rig) & known)
    acted(bench.do("restore", 0))
    assert known <= said(bench.rig)


@pytest.mark.parametrize("blocks", ['"zz"', "7", '"00"'])
def test_a_note_with_broken_blocks_harms_nobody(tmp_path: Path, blocks: str) -> None:
    bench = Bench(tmp_path, n_slots=1)
    bench.read(PROMPT, 0)
    acted(bench.do("save", 0))
    note = slot_files.note_path(tmp_path / "story")
    text = note.read_text()
    start = text.index('"blocks": ') + len('"blocks": ')
    note.write_text(text[:start] + blocks + text[text.index(",", start) :])
    answer = bench.do("restore", 0)
    assert isinstance(answer, SlotActed | Failed)
    assert bench.read(PROMPT + " and more", 0) >= 0
