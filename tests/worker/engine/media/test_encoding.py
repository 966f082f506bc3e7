"""Images that are encoded beside the engine's thread, on the fake backend."""

import queue
import time

import pytest

from protocol.wire.messages import Finish, TaskKey
from protocol.wire.sampling import SamplingParams
from tests.worker.engines import Rig
from worker.engine.fake.backend import FAKE_MARKER
from worker.engine.media import MediaPiece
from worker.engine.scheduling.policy import StepPlan
from worker.engine.task import EngineTask, Submit


class HeldEncoder:
    """Encodes one piece at a time, when it is told to."""

    def __init__(self) -> None:
        self.encoded: set[str] = set()
        self.begun: list[str] = []
        self.started_s = 0.0

    def is_ready(self, piece: MediaPiece) -> bool:
        return piece.key in self.encoded

    def begin(self, piece: MediaPiece) -> None:
        if not self.started_s:
            self.begun.append(piece.key)
            self.started_s = time.monotonic()

    def finish(self) -> None:
        """Encode what was begun last."""
        self.encoded.add(self.begun[-1])
        self.started_s = 0.0


@pytest.fixture
def encoder() -> HeldEncoder:
    return HeldEncoder()


@pytest.fixture
def rig(encoder: HeldEncoder) -> Rig:
    rig = Rig(n_slots=3, n_batch=64)
    rig.backend.encoder = encoder
    return rig


def see(rig: Rig, n: int, *images: bytes) -> int:
    """Submit a task with these images."""
    tokens, media = rig.backend.read_media(FAKE_MARKER.join(["see"] * (len(images) + 1)), images)
    params = SamplingParams(n_predict=4, temperature=0.0)
    rig.engine.submit(Submit(EngineTask(TaskKey(n), tokens, params, media=media)))
    return n


def turn_until_begun(rig: Rig, encoder: HeldEncoder, n: int) -> None:
    while len(encoder.begun) < n:
        rig.turn()


def turn_until_ended(rig: Rig, task_id: int) -> None:
    while not rig.terminals(task_id):
        rig.turn()


def test_a_stream_goes_on_while_an_image_is_encoded(rig: Rig, encoder: HeldEncoder) -> None:
    stream = rig.submit("y", n_predict=20)
    image = see(rig, 50, b"x")
    turn_until_ended(rig, stream)
    assert rig.done(stream).n_predicted == 20
    assert rig.terminals(image) == 0
    encoder.finish()
    rig.finish()
    assert rig.done(image).n_predicted == 4


def test_images_are_encoded_one_after_the_other_the_oldest_task_first(
    rig: Rig, encoder: HeldEncoder
) -> None:
    first, second = see(rig, 50, b"a", b"b"), see(rig, 51, b"c")
    for n in (1, 2, 3):
        turn_until_begun(rig, encoder, n)
        rig.turn()
        assert len(encoder.begun) == n
        encoder.finish()
    rig.finish()
    assert len(set(encoder.begun)) == 3
    assert [rig.done(key).n_predicted for key in (first, second)] == [4, 4]


def test_an_image_that_is_encoded_passes_one_that_is_not(rig: Rig, encoder: HeldEncoder) -> None:
    known = see(rig, 50, b"a")
    turn_until_begun(rig, encoder, 1)
    encoder.finish()
    rig.finish()
    slow, again = see(rig, 51, b"b"), see(rig, 52, b"a")
    turn_until_ended(rig, again)
    assert rig.terminals(slow) == 0
    assert rig.done(again).n_predicted == rig.done(known).n_predicted


def test_few_images_are_encoded_before_they_are_read(
    encoder: HeldEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each embedding takes up to 300 MB, and an encoder may be faster than the model."""
    rig = Rig(n_slots=6, n_batch=64)
    rig.backend.encoder = encoder
    plan = rig.engine._step._policy.plan
    monkeypatch.setattr(rig.engine._step._policy, "plan", lambda *of: StepPlan(plan(*of).rows))
    for n in range(6):
        see(rig, 50 + n, bytes([n]))
    for _ in range(20):
        rig.turn()
        if encoder.started_s:
            encoder.finish()
    assert len(encoder.encoded) == 2


def test_a_task_whose_image_is_being_encoded_can_be_cancelled(
    rig: Rig, encoder: HeldEncoder
) -> None:
    image = see(rig, 50, b"a")
    turn_until_begun(rig, encoder, 1)
    rig.cancel(image)
    rig.turn()
    assert rig.done(image).finish is Finish.CANCELLED
    assert rig.engine.n_busy == 0


def test_the_engine_waits_while_there_is_nothing_but_an_image_to_encode(
    rig: Rig, encoder: HeldEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Commands(queue.SimpleQueue[object]):
        def get(self, block: bool = True, timeout: float | None = None) -> object:
            waits.append(timeout or 0.0)
            return super().get(block, timeout)

    see(rig, 50, b"a")
    turn_until_begun(rig, encoder, 1)
    monkeypatch.setattr(rig.engine, "_commands", Commands())
    for _ in range(3):
        rig.turn()
    assert waits == [0.002] * 3
    assert rig.engine.encoding_since > 0
    rig.submit("y", n_predict=9)
    rig.turn()
    rig.turn()
    assert len(waits) == 4, "another task is computed meanwhile"
    encoder.finish()
    rig.finish()
