"""A saved slot on disk: llama-server's own file, and beside it a note about where it fits.

The file is the one that llama-server writes, to the byte: `llama_state_seq_save_file` of its packed
tokens. The note (JSON) holds what llama.cpp does not check: which model, which build, which
adapters, whose prompt, and a checksum. A file without a note, as llama-server leaves it, is read
too, and so is one that was replaced after its note was written; then only its structure is checked.

llama.cpp aborts the process when it loads a truncated file. So everything is parsed and checked
here, and llama.cpp gets only the state itself.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from protocol.wire.cached import BLOCK_BYTES, MAX_CHAIN_BLOCKS
from worker.engine.media import Media
from worker.engine.sequence_state import NUMBER, spread
from worker.engine.slot import BlockChain
from worker.link.tasks.packed_tokens import (
    INVALID_TOKENS,
    NOT_A_STATE,
    OpenPieces,
    PackedTokens,
    SlotFileMismatch,
    pack,
    read_packed,
)

MAGIC = 0x67677371
_HEADER = struct.Struct("<III")

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStamp:
    """Facts that must be the same when a state is saved and when it is restored."""

    version: int
    """llama.cpp's number of the format."""
    facts: Mapping[str, str]
    """Model, build, cache types, adapters: by name, so that a refusal can say which differs."""
    projector: str = ""
    """Fingerprint of the multimodal projector; compared only for prompts with media."""
    n_streams: int = 0
    """Streams of the cache that llama-server has with the same options; 0: not known."""


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """The content of a file."""

    tokens: list[int]
    state: Buffer
    scales: tuple[float, ...] = ()
    """Of the LoRA adapters that the tokens were read with."""
    salt: str = ""
    """Namespace of the cache that the tokens were read in."""
    stream: int = 0
    """Number of the slot, which in llama-server may have a stream of the cache of its own."""
    size: int = 0
    """Length of the file that it was read from."""
    chain: BlockChain = BlockChain()
    """The prompt that the tokens begin with, as the gateways know it."""
    media: Media = field(default_factory=dict)
    """Images and sounds among the tokens."""


_STAGED = ":part-"
"""Beginning of the temporary names: no client can name a file so."""
_NOTES = ":notes"
"""Folder of the notes: no client can name a file so."""
_MAX_NOTE_BYTES = 16 << 20
_BLOCK = 1 << 20
"""A smaller file counts as this size, so that the quota bounds the number of files, too."""


def note_path(path: Path) -> Path:
    """Name the note that belongs to a file."""
    return path.parent / _NOTES / path.name


def folder_size(folder: Path, besides: str) -> int:
    """Add up the sizes of the files in a folder, except one that is about to be replaced."""
    if not folder.is_dir():
        return 0
    return sum(_size(entry) for entry in os.scandir(folder) if entry.name != besides)


def _size(entry: "os.DirEntry[str]") -> int:
    """Return the size of a file, at least a block; 0 if another worker has just moved it."""
    try:
        return max(_BLOCK, entry.stat().st_size) if entry.is_file() else 0
    except FileNotFoundError:
        return 0


def write(path: Path, saved: SavedSlot, stamp: StateStamp) -> int:
    """Write file and note, each whole or not at all; return the file's size. Raises `OSError`."""
    head = pack(saved.tokens, saved.media)
    state = spread(saved.state, stamp.n_streams, saved.stream)
    parts = (_HEADER.pack(MAGIC, stamp.version, len(head) // 4), head, *state)
    checksum, size = 0, 0
    for part in parts:
        checksum, size = zlib.crc32(part, checksum), size + len(part)
    note = {
        "size": size,
        "crc32": checksum,
        "scales": list(saved.scales),
        "salt": _hidden(saved.salt),
        "fits": _facts(stamp, has_media=bool(saved.media)),
        "blocks": saved.chain.blocks.hex(),
        "n_block_tokens": saved.chain.n_tokens,
    }
    note_path(path).parent.mkdir(exist_ok=True)
    text = json.dumps(note, indent=1).encode()
    with (
        _staged(note_path(path), [text]) as new_note,
        _staged(path, parts) as new,
        _locked(path.parent),
    ):
        # After a loss of power between the two, the checksum of the note does not fit the file.
        new_note.replace(note_path(path))
        new.replace(path)
    for folder in (path.parent, note_path(path).parent):
        _sync_folder(folder)
    return size


@contextlib.contextmanager
def _staged(path: Path, parts: Sequence[Buffer]) -> Iterator[Path]:
    """Write a file under a temporary name; it is removed unless the block renames it."""
    with _locked(path.parent):
        _sweep(path.parent)
        number, name = tempfile.mkstemp(prefix=_STAGED, dir=path.parent)
        with contextlib.suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
    staged = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            yield staged
    finally:
        staged.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove files of processes that were killed while they wrote: these are not locked."""
    for staged in folder.glob(f"{_STAGED}*"):
        with contextlib.suppress(OSError), staged.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            staged.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other workers from replacing a file or its note, where the file system can.

    Otherwise one might get the note of one save and the file of another, whose owner is another.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _sync_folder(path: Path) -> None:
    """Make the new names survive a loss of power."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLimits:
    """Limits of a slot."""

    n_ctx: int
    n_vocab: int
    n_bytes: int
    """Of the file, which is read into memory whole."""
    open_pieces: OpenPieces


def read(path: Path, stamp: StateStamp, limits: SlotLimits, salt: str = "") -> SavedSlot:
    """Read and check a file for a namespace of the cache; raises `SlotFileMismatch`."""
    try:
        found = _find(path, limits.n_bytes)
    except OSError as error:
        raise SlotFileMismatch(NOT_A_STATE) from error
    data, head = found.data, _head(found.data, stamp.version)
    packed = read_packed(head)
    _check_tokens(packed, stamp, limits)
    scales, chain = _check_note(found, stamp, salt, has_media=bool(packed.places))
    tokens, media = packed.unpack(limits.open_pieces)
    state: Buffer = memoryview(data)[_HEADER.size + len(head) :]
    if stamp.n_streams:
        state = gathered(state)
    return SavedSlot(
        tokens, state, scales, salt, size=len(data), chain=chain.cut(len(tokens)), media=media,
    )  # fmt: skip


def _check_tokens(packed: PackedTokens, stamp: StateStamp, limits: SlotLimits) -> None:
    """Refuse tokens that a slot cannot take; raises `SlotFileMismatch`."""
    if packed.places and not stamp.projector:
        raise SlotFileMismatch("Cannot restore media tokens without an mmproj")
    if len(packed.tokens) > limits.n_ctx:
        raise SlotFileMismatch("Restored prompt does not fit in the slot context")
    if max(packed.tokens, default=0) >= limits.n_vocab:
        raise SlotFileMismatch(INVALID_TOKENS)


@dataclass(frozen=True, slots=True)
class _Found:
    """What lay under a name at one moment."""

    data: bytes
    note: bytes | None
    """None: there was none. Empty: it could not be read."""
    is_newer: bool
    """The file is newer than its note, which `write` replaces first."""


def _find(path: Path, max_bytes: int) -> _Found:
    """Read a file and its note, both of the same save; raises `OSError`, `SlotFileMismatch`."""
    with contextlib.ExitStack() as stack:
        note, has_note, is_newer = None, True, False
        with _locked(path.parent):  # what is open stays as it is
            file = stack.enter_context(_opened(path))
            try:
                note = stack.enter_context(_opened(note_path(path)))
            except FileNotFoundError:
                has_note = False
            except OSError:
                pass
        data, text = _contents(file, max_bytes), b""
        if note is not None:
            is_newer = _written_at(file) > _written_at(note)
            with contextlib.suppress(OSError, SlotFileMismatch):
                text = _contents(note, _MAX_NOTE_BYTES)
        return _Found(data, text if has_note else None, is_newer)


def _opened(path: Path) -> BinaryIO:
    """Open a file, also a pipe to which nobody writes; raises `OSError`."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _contents(file: BinaryIO, max_bytes: int) -> bytes:
    """Read a regular file; raises `OSError` for what is none, such as a pipe that never ends.

    Raises `SlotFileMismatch` for one that is too large.
    """
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no file")
    if found.st_size > max_bytes:
        size, limit = found.st_size >> 20, max_bytes >> 20
        raise SlotFileMismatch(f"the file has {size} MiB, and there is memory for {limit} MiB")
    return file.read(found.st_size)


def _written_at(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_mtime_ns


def _head(data: bytes, version: int) -> bytes:
    """Return what stands where llama.cpp's own format has the tokens."""
    if len(data) < _HEADER.size:
        raise SlotFileMismatch(NOT_A_STATE)
    magic, found, n_tokens = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise SlotFileMismatch(NOT_A_STATE)
    if found != version:
        raise SlotFileMismatch(
            f"the file has version {found} of llama.cpp's format, this server {version}"
        )
    if n_tokens > (len(data) - _HEADER.size) // 4:
        raise SlotFileMismatch(NOT_A_STATE)
    return data[_HEADER.size : _HEADER.size + 4 * n_tokens]


_MAX_STREAMS = 256


def gathered(state: Buffer) -> Buffer:
    """Return the state as one of a cache with one stream.

    Raises `SlotFileMismatch` if several streams are in use.
    """
    view = memoryview(state)
    n_streams = NUMBER.unpack_from(view)[0] if len(view) >= NUMBER.size else 0
    if n_streams <= 1:
        return state
    if n_streams > _MAX_STREAMS or len(view) < NUMBER.size * (1 + n_streams):
        raise SlotFileMismatch(NOT_A_STATE)
    counts = struct.unpack_from(f"<{n_streams}I", view, NUMBER.size)
    stream = next((i for i, count in enumerate(counts) if count), n_streams - 1)
    end = len(view) - NUMBER.size * (n_streams - 1 - stream)
    if any(view[end:]):
        raise SlotFileMismatch(NOT_A_STATE)
    return NUMBER.pack(1) + bytes(view[NUMBER.size * (1 + stream) : end])


def _hidden(salt: str) -> str:
    """Identify a namespace without revealing it."""
    return hashlib.sha256(salt.encode()).hexdigest()[:16] if salt else ""


def _facts(stamp: StateStamp, *, has_media: bool) -> dict[str, str]:
    """Return the facts to compare, by name."""
    return {**stamp.facts, "projector": stamp.projector} if has_media else dict(stamp.facts)


def _check_note(
    found: _Found, stamp: StateStamp, salt: str, *, has_media: bool
) -> tuple[tuple[float, ...], BlockChain]:
    """Compare the note with the file and with this worker; return adapters' scales and blocks."""
    if found.note is None:
        return (), BlockChain()
    data = found.data
    try:
        note: Any = json.loads(found.note)
        size, checksum = note["size"], note["crc32"]
        scales = tuple(float(scale) for scale in note["scales"])
        fits = dict(note["fits"])
        owner = str(note.get("salt", ""))
        blocks = bytes.fromhex(note.get("blocks", ""))[: BLOCK_BYTES * MAX_CHAIN_BLOCKS]
        chain = BlockChain(blocks, max(0, int(note.get("n_block_tokens", 0))))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise SlotFileMismatch("its note cannot be read") from error
    if owner != _hidden(salt):
        raise SlotFileMismatch(
            "it was saved in another namespace: with another cache_salt or API key"
        )
    if size != len(data) and found.is_newer:
        return (), BlockChain()
    if (size, checksum) != (len(data), zlib.crc32(data)):
        raise SlotFileMismatch(NOT_A_STATE)
    facts = _facts(stamp, has_media=has_media)
    differing = sorted(k for k in {*fits, *facts} if fits.get(k) != facts.get(k))
    if differing:
        raise SlotFileMismatch(f"it was saved with another {', '.join(differing)}")
    return scales, chain
