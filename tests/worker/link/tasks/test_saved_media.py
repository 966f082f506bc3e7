"""Saved slots with images: what llama-server packs beside the tokens."""

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from protocol.wire.messages import Failed, TaskKey, Terminal
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import SlotActed, SlotAction
from tests.worker.engines import Rig
from worker.engine.fake.backend import FAKE_MARKER
from worker.engine.media import MediaPiece, placeholders
from worker.engine.task import EngineTask, Submit
from worker.link.tasks.packed_tokens import NOT_A_STATE, SlotFileMismatch, pack, read_packed
from worker.link.tasks.side_tasks import SideTasks

TEXT = f"look {FAKE_MARKER} here"
N_ROWS = 4
"""What the fake backend says of every image."""


class Seeing:
    """A rig whose backend reads images, and its side tasks."""

    def __init__(self, folder: Path, projector: str = "sees") -> None:
        self.rig = Rig(n_slots=2)
        self.rig.backend.states.projector = projector
        self.side = SideTasks(self.rig.engine, self.rig.backend, str(folder))
        self._n_asked = 0

    def look(self, image: bytes, slot: int) -> int:
        """Read a prompt with an image; return how much of it was cached."""
        self._n_asked += 1
        tokens, media = self.rig.backend.read_media(TEXT, [image])
        params = SamplingParams(n_predict=0, temperature=0.0)
        key = TaskKey(self._n_asked)
        self.rig.engine.submit(Submit(EngineTask(key, tokens, params, slot=slot, media=media)))
        self.rig.finish()
        return self.rig.started(self._n_asked).n_cached

    def act(self, action: str, slot: int) -> Terminal:
        """Do something with a slot and its file."""
        self.rig.envelopes.clear()
        self.side.start(TaskKey(1000), SlotAction(action=action, filename="story"), slot)
        while True:
            self.side.settle()
            self.rig.turn()
            for answer in self.rig.of(1000):
                if isinstance(answer, Terminal):
                    return answer


def test_a_slot_with_an_image_is_restored_and_found_by_the_same_image_alone(
    tmp_path: Path,
) -> None:
    seeing = Seeing(tmp_path)
    seeing.look(b"cat", 0)
    n_prompt = len("look  here") + 1 + N_ROWS
    saved = seeing.act("save", 0)
    assert isinstance(saved, SlotActed)
    assert saved.n_tokens == n_prompt, "llama-server counts rows, too"
    seeing.act("erase", 0)
    for image, n_cached in ((b"dog", len("look ") + 1), (b"cat", n_prompt - 1)):
        restored = seeing.act("restore", 1)
        assert isinstance(restored, SlotActed)
        assert (restored.n_tokens, restored.n_bytes) == (saved.n_tokens, saved.n_bytes)
        assert seeing.look(image, 1) == n_cached


def test_a_restored_image_can_be_saved_again(tmp_path: Path) -> None:
    seeing = Seeing(tmp_path)
    seeing.look(b"cat", 0)
    seeing.act("save", 0)
    first = (tmp_path / "story").read_bytes()
    seeing.act("restore", 1)
    seeing.act("save", 1)
    assert (tmp_path / "story").read_bytes() == first


@pytest.mark.parametrize(
    ("projector", "reason"),
    [("", "Cannot restore media tokens without an mmproj"), ("other", "another projector$")],
)
def test_images_are_restored_by_what_read_them_alone(
    tmp_path: Path, projector: str, reason: str
) -> None:
    seeing = Seeing(tmp_path)
    seeing.look(b"cat", 0)
    seeing.act("save", 0)
    refused = Seeing(tmp_path, projector).act("restore", 0)
    assert isinstance(refused, Failed)
    with pytest.raises(SlotFileMismatch, match=reason):
        raise SlotFileMismatch(refused.message)


def test_a_text_is_restored_whatever_reads_images(tmp_path: Path) -> None:
    seeing = Seeing(tmp_path)
    seeing.rig.submit("a text alone", slot=0)
    seeing.rig.finish()
    seeing.act("save", 0)
    assert isinstance(Seeing(tmp_path, "").act("restore", 0), SlotActed)


def opened(saved: Sequence[bytes]) -> list[MediaPiece]:
    """Open pieces of two positions and three rows; anything goes but a question mark."""
    if b"?" in saved:
        raise ValueError
    return [MediaPiece(2, data.hex(), n_rows=3, saved=data) for data in saved]


PIECES = (b"a", b"bcdef")
HEAD = [-1, 1, 8, 7, -1, -1, -1, -1, -1, -1, 9, 2, 1, 4]
"""Two images of three rows, one after the other."""


def numbers(values: Sequence[int], *pieces: bytes, tail: bytes = b"") -> bytes:
    data = struct.pack(f"<{len(values)}i", *values)
    data += b"".join(struct.pack("<I", len(one)) + one for one in pieces) + tail
    return data + bytes(-len(data) % 4)


def test_two_images_are_packed_and_unpacked() -> None:
    data = numbers(HEAD, *PIECES)
    tokens, media = read_packed(data).unpack(opened)
    assert tokens == [7, *placeholders(b"a".hex(), 2, 3), *placeholders(b"bcdef".hex(), 2, 3), 9]
    assert {start: piece.saved for start, piece in media.items()} == {1: b"a", 4: b"bcdef"}
    assert pack(tokens, media) == data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (numbers(HEAD, b"a"), NOT_A_STATE),
        (numbers(HEAD, b"a", b""), NOT_A_STATE),
        (numbers(HEAD, *PIECES, tail=bytes(8)), NOT_A_STATE),
        (numbers(HEAD, b"a", tail=struct.pack("<I", 1 << 31)), NOT_A_STATE),
        (numbers([*HEAD[:-3], 1 << 30, 1, 4], *PIECES), NOT_A_STATE),
        (numbers([*HEAD[:-3], -1, 1, 4], *PIECES), NOT_A_STATE),
        (numbers(HEAD, b"a", b"?"), "Cannot load media chunk"),
        (numbers([*HEAD[:-1], 3], *PIECES), "Invalid tokens"),
        (numbers([*HEAD[:-1], 5], *PIECES), "Invalid tokens"),
        (numbers([*HEAD[:-1], 1 << 30], *PIECES), "Invalid tokens"),
        (numbers([*HEAD[:-1], -4], *PIECES), "Invalid tokens"),
        (numbers([*HEAD[:-3], 1, 1], b"a"), "Invalid tokens"),
    ],
)
def test_what_is_packed_in_another_way_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(SlotFileMismatch, match=reason):
        read_packed(data).unpack(opened)
