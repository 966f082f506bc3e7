"""A saved slot on disk: llama.cpp's own session file, and beside it a note of what it fits.

The file is the one that `llama_state_seq_save_file` writes, to the byte. The note (JSON) holds
what llama.cpp does not check: which model, which build, which adapters, and a checksum. A file
without a note, as llama-server leaves it, is read too; its inner structure must do then.

llama.cpp aborts the process when it loads a file that was cut short, so it is never asked to:
everything is parsed and judged here, and only the state itself is handed over.
"""

import contextlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = 0x67677371
_HEADER = struct.Struct("<III")

Buffer = bytes | bytearray | memoryview


class Unfit(Exception):
    """The file cannot be restored; the message says why."""


NOT_A_STATE = "No available space in KV cache or invalid slot save file"
"""llama-server's words for a file that is missing, broken or of another shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What must be the same when a state is restored as when it was saved."""

    version: int
    """llama.cpp's number of the format."""
    facts: Mapping[str, str]
    """Model, build, cache types, adapters: by name, so that a refusal can say which differs."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a file."""

    tokens: list[int]
    state: Buffer
    scales: tuple[float, ...] = ()
    """Of the LoRA adapters that the tokens were read with."""
    n_packed: int = 0
    """Numbers with which llama-server wraps the tokens in its own files."""

    @property
    def size(self) -> int:
        """Length of the file."""
        return _HEADER.size + 4 * (len(self.tokens) + self.n_packed) + len(self.state)


_NOTES = ":notes"
"""Folder of the notes: no client can name a file so."""


def note_path(path: Path) -> Path:
    """Name the note that belongs to a file."""
    return path.parent / _NOTES / path.name


def write(path: Path, saved: Saved, stamp: Stamp) -> int:
    """Write file and note, each whole or not at all; return the file's size. Raises `OSError`."""
    tokens = struct.pack(f"<{len(saved.tokens)}i", *saved.tokens)
    parts = (_HEADER.pack(MAGIC, stamp.version, len(saved.tokens)), tokens, saved.state)
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    note = {
        "size": saved.size,
        "crc32": checksum,
        "scales": list(saved.scales),
        "fits": dict(stamp.facts),
    }
    note_path(path).parent.mkdir(exist_ok=True)
    text = json.dumps(note, indent=1).encode()
    with _staged(note_path(path), [text]) as new_note, _staged(path, parts) as new:
        # Should the power go between the two, the checksum of one does not fit the other.
        new_note.replace(note_path(path))
        new.replace(path)
    for folder in (path.parent, note_path(path).parent):
        _sync_folder(folder)
    return saved.size


@contextlib.contextmanager
def _staged(path: Path, parts: Sequence[Buffer]) -> Iterator[Path]:
    """Write a file under another name; what is not renamed in the block is gone after it."""
    number, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
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


def _sync_folder(path: Path) -> None:
    """Make the new names survive a loss of power."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a slot can take."""

    n_ctx: int
    n_vocab: int


def read(path: Path, stamp: Stamp, limits: Limits) -> Saved:
    """Read and judge a file; raises `Unfit`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unfit(NOT_A_STATE) from error
    numbers = _numbers(data, stamp.version)
    tokens = unpacked(numbers)
    if len(tokens) > limits.n_ctx:
        raise Unfit("Restored prompt does not fit in the slot context")
    if tokens and not (min(tokens) >= 0 and max(tokens) < limits.n_vocab):
        raise Unfit("Invalid tokens in slot save file")
    scales = _check_note(path, data, stamp)
    state = memoryview(data)[_HEADER.size + 4 * len(numbers) :]
    return Saved(tokens, state, scales, len(numbers) - len(tokens))


def _numbers(data: bytes, version: int) -> list[int]:
    """Read what stands where llama.cpp's own format has the tokens."""
    if len(data) < _HEADER.size:
        raise Unfit(NOT_A_STATE)
    magic, found, n_tokens = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise Unfit(NOT_A_STATE)
    if found != version:
        raise Unfit(f"the file has version {found} of llama.cpp's format, this server {version}")
    if n_tokens > (len(data) - _HEADER.size) // 4:
        raise Unfit(NOT_A_STATE)
    return list(struct.unpack_from(f"<{n_tokens}i", data, _HEADER.size))


_PACKED, _PACKED_VERSION = -1, 1


def unpacked(numbers: list[int]) -> list[int]:
    """Return the tokens, which llama-server wraps: marker, version, count, tokens, media count."""
    if not numbers or numbers[0] != _PACKED:
        return numbers
    if len(numbers) < 4 or numbers[2] != len(numbers) - 4:
        raise Unfit(NOT_A_STATE)
    if numbers[1] != _PACKED_VERSION:
        raise Unfit("Unsupported server tokens state version")
    if numbers[-1]:
        raise Unfit("Cannot restore media tokens")
    return numbers[3:-1]


def _check_note(path: Path, data: bytes, stamp: Stamp) -> tuple[float, ...]:
    """Compare the note with the file and with this worker; return the adapters' scales."""
    try:
        note: Any = json.loads(note_path(path).read_bytes())
        size, checksum = note["size"], note["crc32"]
        scales = tuple(float(scale) for scale in note["scales"])
        fits = dict(note["fits"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unfit(f"its note {note_path(path).name} cannot be read") from error
    if (size, checksum) != (len(data), zlib.crc32(data)):
        raise Unfit(NOT_A_STATE)
    differing = sorted(k for k in {*fits, *stamp.facts} if fits.get(k) != stamp.facts.get(k))
    if differing:
        raise Unfit(f"it was saved with another {', '.join(differing)}")
    return scales
