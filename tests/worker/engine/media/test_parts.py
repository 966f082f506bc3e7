"""Images that are read in parts between the tokens of others, on the fake backend."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.messages import Finish, TaskKey
from protocol.wire.sampling import SamplingParams
from tests.worker.engines import Rig
from worker.engine.media import MediaPiece, count_positions, piece_at
from worker.engine.scheduling.admission import Admission
from worker.engine.scheduling.budget import StepBudget
from worker.engine.scheduling.policy import MIN_PART, part_rows
from worker.engine.task import EngineTask, Submit

N_ROWS = 300


class Parts:
    """Notes which rows of images are read."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[int, range]] = []
        """The sequence and the rows, in order."""
        self._decode = rig.backend.decode_media
        monkeypatch.setattr(rig.backend, "decode_media", self._note)

    def _note(self, seq: int, pos: int, piece: MediaPiece, rows: range) -> None:
        self._decode(seq, pos, piece, rows)
        self.found.append((seq, rows))

    def sizes(self, seq: int) -> list[int]:
        return [len(rows) for one, rows in self.found if one == seq]


def small_steps(rig: Rig, n: int = 100) -> None:
    """Let each step read at most `n` tokens of prompts."""
    budget = rig.engine._step._budget
    budget.token_s, budget.target_s, budget.idle_target_s = 1.0, float(n), float(n)


@pytest.fixture(autouse=True)
def observed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the budget would learn from, beside the time: rows that decode, and those of prompts."""
    found: list[tuple[int, int]] = []

    def observe(_budget: StepBudget, n_decoding: int, n_prompt: int, _elapsed_s: float) -> None:
        found.append((n_decoding, n_prompt))

    monkeypatch.setattr(StepBudget, "observe", observe)
    return found


@pytest.fixture
def rig() -> Rig:
    rig = Rig(n_slots=3, n_ctx=1024, n_batch=128)
    small_steps(rig)
    return rig


@pytest.fixture
def parts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Parts:
    return Parts(rig, monkeypatch)


def task(rig: Rig, n: int, *keys: str, n_pos: int = 10, **piece: Any) -> EngineTask:
    """A task with one image of `N_ROWS` for each key, between words."""
    prompt = rig.backend.tokenize("see", add_special=True, parse_special=True)
    media = {}
    for key in keys:
        media[len(prompt)] = MediaPiece(n_pos, key, n_rows=N_ROWS, **piece)
        prompt += media[len(prompt)].placeholders
        prompt += rig.backend.tokenize(" here", add_special=False, parse_special=True)
    params = SamplingParams(n_predict=4, temperature=0.0)
    return EngineTask(TaskKey(n), prompt, params, media=media)


def see(rig: Rig, n: int, *keys: str, **piece: Any) -> int:
    rig.engine.submit(Submit(task(rig, n, *keys, **piece)))
    return n


def turn_until_in_part(rig: Rig, parts: Parts, n: int = 1) -> None:
    while len(parts.found) < n:
        rig.turn()


def n_cells(rig: Rig) -> int:
    return sum(map(len, rig.backend._cells.values()))


@pytest.mark.parametrize("n_pos", [N_ROWS, 10])
def test_an_image_is_read_by_the_budget_of_each_step(rig: Rig, parts: Parts, n_pos: int) -> None:
    stream = rig.submit("y", n_predict=40)
    rig.turn()
    image = see(rig, 50, "a", n_pos=n_pos)
    rig.finish()
    assert sum(parts.sizes(1)) == N_ROWS
    assert set(parts.sizes(1)) == {100}
    assert [rows.start for _, rows in parts.found[1:]] == [
        rows.stop for _, rows in parts.found[:-1]
    ]
    assert rig.done(stream).n_predicted == 40
    assert rig.done(image).n_predicted == 4


def test_the_budget_learns_from_images_as_from_text(
    rig: Rig, parts: Parts, observed: list[tuple[int, int]]
) -> None:
    """Where prompts are little but images, their time per token would never be known."""
    see(rig, 50, "a")
    rig.finish()
    assert sum(n for _, n in observed) == len("see") + 1 + N_ROWS + len(" here")
    assert {0} == {n for n, n_prompt in observed if n_prompt}


def test_a_stream_has_a_token_in_each_step_of_an_image(rig: Rig, parts: Parts) -> None:
    stream = rig.submit("y", n_predict=100)
    rig.turn()
    rig.turn()
    see(rig, 50, "a")
    turn_until_in_part(rig, parts)
    n_before = len(rig.of(stream))
    while sum(parts.sizes(1)) < N_ROWS:
        rig.turn()
    assert len(rig.of(stream)) - n_before == len(parts.found) - 1
    rig.finish()


def test_a_short_prompt_is_not_kept_waiting_by_an_image(rig: Rig, parts: Parts) -> None:
    see(rig, 50, "a", "b")
    turn_until_in_part(rig, parts)
    short = rig.submit("y", n_predict=1)
    while not rig.terminals(short):
        rig.turn()
    assert sum(parts.sizes(0)) < N_ROWS
    rig.finish()


def test_of_two_images_one_is_read_at_a_time(rig: Rig, parts: Parts) -> None:
    first, second = see(rig, 50, "a"), see(rig, 51, "b")
    rig.finish()
    seqs = [seq for seq, _ in parts.found]
    assert seqs == sorted(seqs)
    assert [rig.done(key).n_predicted for key in (first, second)] == [4, 4]


def test_rows_that_attend_to_each_other_are_one_batch(rig: Rig, parts: Parts) -> None:
    rig.submit("y", n_predict=20)
    rig.turn()
    see(rig, 50, "a", is_undivided=True)
    rig.finish()
    assert parts.sizes(1) == [N_ROWS]


def test_a_cancelled_task_leaves_no_part_of_its_image(rig: Rig, parts: Parts) -> None:
    image = see(rig, 50, "a")
    turn_until_in_part(rig, parts, 2)
    rig.cancel(image)
    rig.turn()
    assert rig.done(image).finish is Finish.CANCELLED
    assert rig.engine.n_busy == 0
    assert n_cells(rig) == len(rig.engine.slots[0].tokens) == len("see") + 1
    again = see(rig, 51, "a")
    rig.finish()
    assert rig.started(again).n_cached == len("see") + 1
    assert rig.done(again).n_predicted == 4


@pytest.mark.parametrize("needs_checkpoints", [False, True])
def test_others_share_what_is_before_an_image_and_not_a_part_of_it(
    monkeypatch: pytest.MonkeyPatch, *, needs_checkpoints: bool
) -> None:
    rig = Rig(n_slots=2, n_ctx=1024, n_batch=128, needs_checkpoints=needs_checkpoints)
    small_steps(rig)
    parts = Parts(rig, monkeypatch)
    first = see(rig, 50, "a")
    turn_until_in_part(rig, parts, 2)
    assert rig.engine.slots[0].has_part
    second = see(rig, 51, "a", "b")
    rig.finish()
    assert rig.started(second).n_cached <= len("see") + 1
    assert [rig.done(key).n_predicted for key in (first, second)] == [4, 4]


@pytest.mark.parametrize("needs_checkpoints", [False, True])
def test_a_preempted_task_reads_its_image_again(
    monkeypatch: pytest.MonkeyPatch, *, needs_checkpoints: bool
) -> None:
    rig = Rig(
        n_slots=2, n_ctx=1024, n_batch=128, host_bytes=1 << 20, needs_checkpoints=needs_checkpoints
    )
    small_steps(rig)
    parts = Parts(rig, monkeypatch)
    image = see(rig, 50, "a")
    turn_until_in_part(rig, parts, 2)
    rig.engine._step._preemption.preempt(rig.engine.slots[0])
    assert n_cells(rig) == 0
    rig.finish()
    starts = [rows.start for _, rows in parts.found]
    assert starts.count(0) == 2
    assert rig.done(image).n_predicted == 4


def test_a_task_that_was_preempted_for_an_image_computes_nothing_in_that_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(n_slots=2, n_cells=350, n_batch=128)
    small_steps(rig)
    monkeypatch.setattr(Admission, "_fits", lambda *_: True)
    image = see(rig, 50, "a", n_pos=N_ROWS)
    rig.turn()
    stream = rig.submit("y" * 100, n_predict=30)
    rig.finish()
    assert rig.engine.counters.n_preempted >= 1
    assert rig.done(image).n_predicted == 4
    assert rig.done(stream).n_predicted == 30


@given(n=st.integers(1, 4096), n_left=st.integers(1, 4096))
def test_parts_are_about_equal_and_not_small(n: int, n_left: int) -> None:
    sizes: list[int] = []
    while sum(sizes) < n_left:
        sizes.append(part_rows(n, n_left - sum(sizes)))
    assert sum(sizes) == n_left
    assert max(sizes) <= max(n, 2 * MIN_PART)
    assert min(sizes) >= min(n_left, MIN_PART) - 1 or max(sizes) - min(sizes) <= 1
    assert min(sizes) > 1 or n_left == 1


def test_the_piece_of_a_token_is_found() -> None:
    piece = MediaPiece(2, "a", n_rows=4)
    media = {5: piece}
    assert [piece_at(media, n) for n in (4, 9)] == [None, None]
    assert [piece_at(media, n) for n in (5, 8)] == [(5, piece)] * 2
    assert count_positions(piece.placeholders) == 2
