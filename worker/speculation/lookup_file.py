"""n-gram caches as files, in the format of llama.cpp's `common_ngram_cache_save`.

Little-endian int32: four tokens (-1 where the n-gram is shorter), the number of followers, and for
each its token and count, repeated to the end of the file.
"""

import fcntl
import logging
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import ConfigError
from protocol.named_file import read_named_bytes
from worker.engine.speculation.draft import Drafter, DraftRequest
from worker.engine.speculation.ngram_cache import NGRAM_MAX, Cache, CacheLookup, Ngram, merge
from worker.host.topology import usable_memory

logger = logging.getLogger(__name__)

_MAX_BYTES = 1 << 30
"""Of a file of n-grams."""
_MEMORY_RATIO = 20
"""Bytes of memory for each byte of a file of n-grams with one follower each; others need less."""
_ABSENT = -1
"""Stands for the missing tokens of a short n-gram, as in llama.cpp."""
_HEAD = struct.Struct(f"<{NGRAM_MAX}ii")
_FOLLOWER = struct.Struct("<ii")
_MAX_TIMES = (1 << 31) - 1
"""Counts are 32 bits with a sign in the file."""


def pack(cache: Cache) -> bytes:
    """Write a cache as the bytes of a file."""
    parts: list[bytes] = []
    for ngram, followers in cache.items():
        padded = (*ngram, *(_ABSENT,) * (NGRAM_MAX - len(ngram)))
        parts.append(_HEAD.pack(*padded, len(followers)))
        parts += [
            _FOLLOWER.pack(token, min(count, _MAX_TIMES)) for token, count in followers.items()
        ]
    return b"".join(parts)


def unpack(data: bytes, n_vocab: int) -> Cache:
    """Read the bytes of a file; raises ValueError where they are not a cache of this vocabulary."""
    cache: Cache = {}
    at = 0
    while at < len(data):
        if at + _HEAD.size > len(data):
            raise ValueError("it ends within an entry")
        *tokens, n = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if n <= 0 or at + n * _FOLLOWER.size > len(data):
            raise ValueError("it ends within an entry")
        followers = dict(_FOLLOWER.iter_unpack(data[at : at + n * _FOLLOWER.size]))
        at += n * _FOLLOWER.size
        ngram = _ngram(tokens)
        if not all(0 <= token < n_vocab for token in (*ngram, *followers)):
            raise ValueError("it holds tokens that the model does not have")
        if min(followers.values()) <= 0:
            raise ValueError("it counts a follower that never came")
        cache[ngram] = followers
    return cache


def _ngram(tokens: Sequence[int]) -> Ngram:
    size = next((i for i, token in enumerate(tokens) if token == _ABSENT), NGRAM_MAX)
    return tuple(tokens[:size])


def read_cache(path: str, n_vocab: int, *, may_be_new: bool = False) -> Cache:
    """Load a file; a missing one is an empty cache, with a warning unless it may be new.

    Raises `ConfigError` with its name.
    """
    if not path or (may_be_new and not Path(path).exists()):
        return {}
    try:
        _check_room(Path(path))
        return unpack(read_named_bytes(Path(path), _MAX_BYTES), n_vocab)
    except FileNotFoundError:
        logger.warning(
            "lookup cache does not exist", extra={"file": path, "action": "it begins empty"}
        )
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read lookup cache {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no lookup cache of this model: {error}") from error


def _check_room(path: Path) -> None:
    """Raise `ConfigError` where the cache may not fit into memory: it would end other workers."""
    needed, usable = path.stat().st_size * _MEMORY_RATIO, usable_memory()
    if needed > usable > 0:
        gib = 1 << 30
        message = f"may need {needed / gib:.1f} GiB of memory, and {usable / gib:.1f} GiB are left"
        raise ConfigError(f"lookup cache {path} {message}: use a smaller one")


def write_cache(path: str, cache: Cache) -> None:
    """Write a file as a whole or not at all."""
    target = Path(path).absolute()
    number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(pack(cache))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, so that no other worker writes into it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def add_to_cache(path: str, learnt: Cache, n_vocab: int) -> None:
    """Add counts to a file that other workers may write too; raises like `read_cache`."""
    with _alone(Path(path).absolute().parent):
        cache = read_cache(path, n_vocab, may_be_new=True)
        merge(cache, learnt)
        write_cache(path, cache)


class SavedLookup(Drafter):
    """A `Drafter` whose dynamic cache is a file: read at the start, added to at the end."""

    def __init__(self, lookup: CacheLookup, path: str, n_vocab: int) -> None:
        self._lookup = lookup
        self._path = path
        self._n_vocab = n_vocab
        self.n_max = lookup.n_max

    def draft(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Return a draft for each request."""
        return self._lookup.draft(requests)

    def learn(self, slot: int, tokens: Sequence[int]) -> None:
        """Add a finished text, if there is a file."""
        if self._path:
            self._lookup.learn(slot, tokens)

    def close(self) -> None:
        """Add the learnt counts to the file; an error is logged only."""
        if not self._path or not self._lookup.n_learnt:
            return
        try:
            add_to_cache(self._path, self._lookup.learnt, self._n_vocab)
        except (OSError, ConfigError) as error:
            logger.error(
                "lookup cache not written",
                extra={
                    "file": self._path,
                    "cause": error,
                    "action": "what this worker has learnt is lost",
                    "hint": "is the disk full? may this user write there?",
                },
            )
