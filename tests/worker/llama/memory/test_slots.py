"""Saving and restoring slots of the real llama.cpp."""

import ctypes
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import llama_cpp.llama_cpp as lib
import pytest

from protocol.errors import ErrorCode, TaskError
from protocol.wire.side_tasks import SlotActed, SlotAction
from tests.worker.conftest import serving
from tests.worker.served import Served, is_plausible
from worker.link.tasks.packed_tokens import pack
from worker.link.tasks.slot_files import note_path

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

STORY = "Once upon a time there was a very old house at the end of the street, and in it lived"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[Served]:
    """Two slots whose states may be saved."""
    with serving(2, slot_save_path=str(folder), kv_unified=True) as served:
        yield served


def act(served: Served, folder: Path, action: str, slot: int, name: str = "story") -> SlotActed:
    answer = served.do(SlotAction(action=action, filename=name), folder, slot)
    assert isinstance(answer, SlotActed)
    return answer


def saved(served: Served, folder: Path, name: str = "story") -> SlotActed:
    """Read the story in slot 0 and save it."""
    served.ask(STORY, n_predict=0, id_slot=0)
    return act(served, folder, "save", 0, name)


def test_a_saved_slot_restored_into_another_goes_on_as_before(
    single: Served, two: Served, folder: Path
) -> None:
    done = saved(two, folder)
    n_tokens = len(two.tokenize(STORY))
    assert done.n_tokens == n_tokens
    assert done.n_bytes == (folder / "story").stat().st_size
    for slot in (0, 1):
        act(two, folder, "erase", slot)
    restored = act(two, folder, "restore", 1)
    assert (restored.n_tokens, restored.n_bytes) == (n_tokens, done.n_bytes)
    answer = two.ask(STORY + " a witch who", id_slot=1)
    assert answer.done.n_cached == n_tokens
    is_plausible(single, STORY + " a witch who", answer)


@pytest.mark.cpu
def test_a_saved_slot_outlives_its_worker(folder: Path) -> None:
    with serving(1, slot_save_path=str(folder)) as worker:
        expected = worker.ask(STORY + " a witch who", cache_prompt=False).text
        n_tokens = saved(worker, folder, "for-another").n_tokens
    with serving(1, slot_save_path=str(folder)) as worker:
        act(worker, folder, "restore", 0, "for-another")
        answer = worker.ask(STORY + " a witch who")
    assert answer.done.n_cached == n_tokens
    assert answer.text == expected


def test_llama_cpp_itself_reads_and_writes_the_same_file(two: Served, folder: Path) -> None:
    saved(two, folder, "same")
    context, tokens = two.backend._context, two.tokenize(STORY)
    packed = list(memoryview(pack(tokens, {})).cast("i"))
    for name, numbers in (("theirs", packed), ("older", tokens)):
        array = (lib.llama_token * len(numbers))(*numbers)
        theirs = str(folder / name).encode()
        lib.llama_state_seq_save_file(context, theirs, 0, array, len(numbers))
        # A file of llama.cpp's own has no note, and is restored all the same.
        assert act(two, folder, "restore", 1, name).n_tokens == len(tokens)
    assert (folder / "theirs").read_bytes() == (folder / "same").read_bytes()
    n, room = ctypes.c_size_t(), len(packed)
    array = (lib.llama_token * room)()
    ours = str(folder / "same").encode()
    assert lib.llama_state_seq_load_file(context, ours, 1, array, room, ctypes.byref(n))
    assert list(array) == packed
    act(two, folder, "erase", 1)


def test_an_empty_slot_can_be_saved_and_restored(two: Served, folder: Path) -> None:
    act(two, folder, "erase", 0)
    assert act(two, folder, "save", 0, "empty").n_tokens == 0
    two.ask(STORY, id_slot=1, n_predict=0)
    assert act(two, folder, "restore", 1, "empty").n_tokens == 0
    assert two.engine.slots[1].tokens == []


def test_a_cell_at_a_negative_position_is_refused_and_none_stays(two: Served, folder: Path) -> None:
    """llama.cpp takes it, cannot remove it, and shows it what is written there later."""
    saved(two, folder, "forged")
    data = bytearray((folder / "forged").read_bytes())
    n_head = int.from_bytes(data[8:12], "little")
    first = 12 + 4 * n_head + 8
    assert data[first : first + 8] == bytes(4) + (1).to_bytes(4, "little")
    for position in (-1, -(2**31)):
        data[first : first + 4] = position.to_bytes(4, "little", signed=True)
        (folder / "forged").write_bytes(data)
        note_path(folder / "forged").unlink(missing_ok=True)
        with pytest.raises(TaskError, match=r"^Unable to restore slot: "):
            act(two, folder, "restore", 1, "forged")
        memory = lib.llama_get_memory(two.backend._context)
        assert lib.llama_memory_seq_pos_min(memory, 1) == -1
        assert lib.llama_memory_seq_pos_max(memory, 1) == -1


def flipped(data: bytes) -> bytes:
    state = bytearray(data)
    for i in range(len(data) // 2, len(data), 997):
        state[i] ^= 0x55
    return bytes(state)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + bytes(64),
    "garbage": lambda _: b"no such thing" * 100,
    "empty": lambda _: b"",
    "old version": lambda data: data[:4] + (2).to_bytes(4, "little") + data[8:],
    "more tokens than bytes": lambda data: data[:8] + b"\xff\xff\xff\x7f" + data[12:],
    "another token": lambda data: data[:12] + b"\xff\xff\xff\x00" + data[16:],
    "flipped bits": flipped,
}


@pytest.mark.parametrize(
    ("how", "has_note"),
    # Numbers that are only wrong show in the checksum alone.
    [(how, note) for how in DAMAGE for note in (True, False) if note or how != "flipped bits"],
)
def test_a_damaged_file_is_refused_and_empties_the_slot(
    two: Served, folder: Path, how: str, has_note: bool
) -> None:
    saved(two, folder, "bad")
    (folder / "bad").write_bytes(DAMAGE[how]((folder / "bad").read_bytes()))
    if not has_note:
        note_path(folder / "bad").unlink()
    two.ask(STORY, id_slot=1, n_predict=0)
    with pytest.raises(TaskError, match=r"^Unable to restore slot: ") as caught:
        act(two, folder, "restore", 1, "bad")
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert two.engine.slots[1].tokens == []
    assert two.ask(STORY, id_slot=1, n_predict=1).text


@pytest.mark.parametrize("fact", ["model", "llama.cpp", "cache type"])
def test_a_file_of_another_model_or_build_is_refused_by_name(
    two: Served, folder: Path, fact: str
) -> None:
    saved(two, folder, "foreign")
    note = json.loads(note_path(folder / "foreign").read_text())
    note["fits"][fact] = "another"
    note_path(folder / "foreign").write_text(json.dumps(note))
    with pytest.raises(TaskError, match=rf"Unable to restore slot: .* another {fact}"):
        act(two, folder, "restore", 1, "foreign")


def test_a_missing_file_is_refused_in_llama_servers_words(two: Served, folder: Path) -> None:
    words = "Unable to restore slot: No available space in KV cache or invalid slot save file"
    with pytest.raises(TaskError, match=words):
        act(two, folder, "restore", 1, "nowhere")
