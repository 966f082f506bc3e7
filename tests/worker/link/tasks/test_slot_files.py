"""Files of saved slots, without llama.cpp."""

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker.link.tasks import slot_files
from worker.link.tasks.packed_tokens import SlotFileMismatch
from worker.link.tasks.slot_files import MAGIC, SavedSlot, SlotLimits, StateStamp, note_path

STAMP = StateStamp(version=3, facts={"model": "m", "build": "b"})
LIMITS = SlotLimits(n_ctx=100, n_vocab=50, n_bytes=1 << 30, open_pieces=lambda _: ())
SAVED = SavedSlot([1, 2, 3], b"state of three tokens", (0.5,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "story"


def test_what_is_written_reads_back(path: Path) -> None:
    size = slot_files.write(path, SAVED, STAMP)
    assert size == path.stat().st_size
    found = slot_files.read(path, STAMP, LIMITS)
    assert (found.tokens, bytes(found.state), found.scales) == ([1, 2, 3], SAVED.state, (0.5,))


def test_saving_again_replaces_both_file_and_note(path: Path) -> None:
    slot_files.write(path, SAVED, STAMP)
    slot_files.write(path, SavedSlot([4], b"another"), STAMP)
    assert slot_files.read(path, STAMP, LIMITS).tokens == [4]


def test_a_file_and_its_note_are_those_of_one_save(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers saved under one name: one's note with the other's file gave a prompt away."""
    seen: list[str] = []

    def is_locked() -> bool:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(folder)
        return False

    def watched(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*args: Any) -> Any:
            assert is_locked(), what
            seen.append(what)
            return call(*args)

        return replacement

    monkeypatch.setattr(Path, "replace", watched("replace", Path.replace))
    monkeypatch.setattr(slot_files, "_opened", watched("open", slot_files._opened))
    slot_files.write(path, SAVED, STAMP)
    slot_files.read(path, STAMP, LIMITS)
    assert seen == ["replace", "replace", "open", "open"]
    assert not is_locked()


def test_what_a_killed_worker_left_half_written_goes_and_what_is_being_written_stays(
    path: Path,
) -> None:
    slot_files.write(path, SAVED, STAMP)
    left = [folder / ":part-abc" for folder in (path.parent, note_path(path).parent)]
    for one in left:
        one.write_bytes(b"half")
    (path.parent / ":part-locked").write_bytes(b"half")
    with (path.parent / ":part-locked").open() as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        slot_files.write(path, SAVED, STAMP)
    assert not any(one.exists() for one in left)
    assert {one.name for one in path.parent.iterdir()} == {":notes", ":part-locked", "story"}


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, '{"size": 1, "crc32": 1e999}', "5"])
def test_a_note_that_is_none_refuses_the_file(path: Path, content: str) -> None:
    slot_files.write(path, SAVED, STAMP)
    note_path(path).write_text(content)
    with pytest.raises(SlotFileMismatch, match=r"its note cannot be read|^No available space"):
        slot_files.read(path, STAMP, LIMITS)


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_half(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot_files.write(path, SAVED, STAMP)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class FullFile:
        def __init__(self, number: int, _: str) -> None:
            self.number = number

        def __enter__(self) -> "FullFile":
            return self

        def __exit__(self, *_: object) -> None:
            os.close(self.number)

        write = staticmethod(full)

    with monkeypatch.context() as patched:
        match step:
            case "write":
                patched.setattr(os, "fdopen", FullFile)
            case "fsync":
                patched.setattr(os, "fsync", full)
            case _:
                patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            slot_files.write(path, SavedSlot([9], b"lost"), STAMP)
    assert slot_files.read(path, STAMP, LIMITS).tokens == [1, 2, 3]
    assert [one.name for one in path.parent.iterdir() if one.name.endswith(".part")] == []
    assert [one.name for one in note_path(path).parent.iterdir()] == ["story"]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_is_refused_at_once(path: Path, make: Callable[[Path], object]) -> None:
    make(path)
    with pytest.raises(SlotFileMismatch):
        slot_files.read(path, STAMP, LIMITS)


def test_a_file_beyond_memory_is_refused_before_it_is_read(path: Path) -> None:
    slot_files.write(path, SAVED, STAMP)
    with path.open("r+b") as file:
        file.truncate(50 << 30)
    limits = replace(LIMITS, n_bytes=8 << 20)
    with pytest.raises(
        SlotFileMismatch, match="the file has 51200 MiB, and there is memory for 8 MiB"
    ):
        slot_files.read(path, STAMP, limits)


def test_a_power_cut_between_file_and_note_is_noticed(path: Path) -> None:
    slot_files.write(path, SAVED, STAMP)
    old = path.rename(path.with_name("old"))
    slot_files.write(path, SavedSlot([9], b"new"), STAMP)
    old.replace(path)
    with pytest.raises(SlotFileMismatch, match="invalid slot save file"):
        slot_files.read(path, STAMP, LIMITS)


@pytest.mark.parametrize(
    ("stamp", "limits", "reason"),
    [
        (StateStamp(version=4, facts=STAMP.facts), LIMITS, "version 3"),
        (StateStamp(version=3, facts={"model": "x", "build": "b"}), LIMITS, "another model$"),
        (StateStamp(version=3, facts={"model": "m"}), LIMITS, "another build$"),
        (STAMP, replace(LIMITS, n_ctx=2), "does not fit in the slot context"),
        (STAMP, replace(LIMITS, n_vocab=3), "Invalid tokens"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    path: Path, stamp: StateStamp, limits: SlotLimits, reason: str
) -> None:
    slot_files.write(path, SAVED, STAMP)
    with pytest.raises(SlotFileMismatch, match=reason):
        slot_files.read(path, stamp, limits)


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"size": 1}', "\0"])
def test_a_broken_note_is_refused(path: Path, note: str) -> None:
    slot_files.write(path, SAVED, STAMP)
    note_path(path).write_text(note)
    with pytest.raises(SlotFileMismatch, match="note"):
        slot_files.read(path, STAMP, LIMITS)


def test_a_file_without_a_note_is_read_as_llama_server_left_it(path: Path) -> None:
    slot_files.write(path, SAVED, STAMP)
    note_path(path).unlink()
    assert slot_files.read(path, STAMP, LIMITS).tokens == [1, 2, 3]


def rewrite(path: Path, numbers: list[int], state: bytes = b"state") -> None:
    """Leave a file as another server writes it."""
    path.write_bytes(struct.pack(f"<III{len(numbers)}i", MAGIC, 3, len(numbers), *numbers) + state)


def written_by_another_server(path: Path, salt: str) -> None:
    """Leave a note and, newer than it, a file of other length."""
    slot_files.write(path, replace(SAVED, salt=salt), STAMP)
    rewrite(path, [7, 8])
    os.utime(path, ns=(0, note_path(path).stat().st_mtime_ns + 1))


def test_a_file_that_another_server_has_replaced_is_read_without_its_old_note(path: Path) -> None:
    written_by_another_server(path, "")
    found = slot_files.read(path, STAMP, LIMITS)
    assert (found.tokens, found.scales) == ([7, 8], ())


def test_what_replaced_a_file_of_a_namespace_stays_in_it(path: Path) -> None:
    written_by_another_server(path, "a")
    with pytest.raises(SlotFileMismatch, match="another namespace"):
        slot_files.read(path, STAMP, LIMITS)


def test_tokens_are_written_as_llama_server_wraps_them(path: Path) -> None:
    slot_files.write(path, SAVED, STAMP)
    rewritten = path.with_name("theirs")
    rewrite(rewritten, [-1, 1, 3, 1, 2, 3, 0], bytes(SAVED.state))
    assert path.read_bytes() == rewritten.read_bytes()


@pytest.mark.parametrize("numbers", [[7, 8], [-1, 1, 2, 7, 8, 0]], ids=["plain", "wrapped"])
def test_both_layouts_of_tokens_are_read(path: Path, numbers: list[int]) -> None:
    rewrite(path, numbers)
    found = slot_files.read(path, STAMP, LIMITS)
    assert (found.tokens, bytes(found.state)) == ([7, 8], b"state")
    assert found.size == path.stat().st_size


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([-1], "invalid slot save file"),
        ([-1, 1, 3, 7, 8, 0], "invalid slot save file"),
        ([-1, 2, 2, 7, 8, 0], "Unsupported server tokens state version"),
        ([-1, 1, 2, 7, 8, 1], "invalid slot save file"),
        ([-1, 1, 2, 7, 8, 1, 0, 1, 65], "Cannot restore media tokens"),
        ([-1, 1, 2, 7, 8, 0, 9], "invalid slot save file"),
        ([-1, 1, -2, 7, 8, 0], "invalid slot save file"),
        ([-1, 1, 0], "invalid slot save file"),
    ],
)
def test_what_is_wrapped_in_another_way_is_refused(
    path: Path, numbers: list[int], reason: str
) -> None:
    rewrite(path, numbers)
    with pytest.raises(SlotFileMismatch, match=reason):
        slot_files.read(path, STAMP, LIMITS)


def test_a_file_is_restored_in_the_namespace_that_it_was_saved_in(path: Path) -> None:
    slot_files.write(path, SavedSlot([1], b"mine", salt="a"), STAMP)
    assert slot_files.read(path, STAMP, LIMITS, "a").salt == "a"
    for salt in ("", "b"):
        with pytest.raises(SlotFileMismatch, match="another namespace"):
            slot_files.read(path, STAMP, LIMITS, salt)
    assert '"a"' not in note_path(path).read_text()


def test_the_files_of_a_folder_are_added_up_but_for_the_one_to_be_replaced(path: Path) -> None:
    assert slot_files.folder_size(path.parent / "none", "story") == 0
    slot_files.write(path, SAVED, STAMP)
    (path.parent / "other").write_bytes(bytes(3 << 20))
    (path.parent / "small").write_bytes(b"x")
    assert slot_files.folder_size(path.parent, "story") == 4 << 20


def test_a_file_that_goes_while_its_folder_is_read_counts_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker of the model saves for the same client: it writes `.part` and moves it."""
    (path.parent / "story.part").write_bytes(b"x")
    entries = list(os.scandir(path.parent))
    (path.parent / "story.part").unlink()
    monkeypatch.setattr(os, "scandir", lambda folder: entries)
    assert slot_files.folder_size(path.parent, "story") == 0


@pytest.mark.parametrize("n_streams", [1, 2, 4])
def test_the_streams_of_llama_server_are_written_and_read(path: Path, n_streams: int) -> None:
    state = struct.pack("<II", 1, 3) + b"three cells" + bytes(4)
    for stream in range(n_streams):
        saved = SavedSlot([1, 2, 3], state, stream=stream)
        slot_files.write(path, saved, replace(STAMP, n_streams=n_streams))
        inside = path.read_bytes()[12 + 4 * 7 :]
        counts = struct.unpack_from(f"<{1 + stream + 1}I", inside)
        assert counts == (n_streams, *[0] * stream, 3)
        for other in (1, 2, 8):
            found = slot_files.read(path, replace(STAMP, n_streams=other), LIMITS)
            assert bytes(found.state) == state


def test_a_state_of_no_cells_has_no_stream_in_use() -> None:
    assert slot_files.gathered(struct.pack("<IIII", 3, 0, 0, 0)) == struct.pack("<II", 1, 0)


@pytest.mark.parametrize(
    "state", [struct.pack("<II", 3, 0), struct.pack("<IIIII", 2, 1, 7, 7, 1), b"\xff" * 16]
)
def test_streams_that_cannot_be_told_apart_are_refused(state: bytes) -> None:
    with pytest.raises(SlotFileMismatch):
        slot_files.gathered(state)
