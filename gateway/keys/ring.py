"""All valid keys. Files that change are read again, in a thread; a broken one changes nothing."""

import asyncio
import hmac
import logging
import os
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from gateway.keys.api_key import ApiKey, KeyScope, digest, plain_key
from gateway.keys.parse import KeyFileError, by_digest, parse_keys
from protocol.errors import ConfigError
from protocol.named_file import read_named_text

logger = logging.getLogger(__name__)

_MAX_BYTES = 32 * 1024 * 1024
"""Of a key file: a hundred thousand keys with all their fields."""
_NOBODY = bytes(32)
_READ_LIMIT_S = 5.0
"""Seconds that requests wait for a file that is read again; then the keys read before count."""


class _FileVersion(NamedTuple):
    """Tells two versions of a file apart; a file that is not there has the empty stamp."""

    mtime_ns: int = 0
    size: int = 0
    inode: int = 0


class KeyFile:
    """One key file with its keys as last read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: tuple[ApiKey, ...] = ()
        self._stamp = _FileVersion()
        self._is_stream = False
        """Whether it is a pipe, such as a shell's `<(COMMAND)`: it can be read once."""
        self._was_read = False

    def __repr__(self) -> str:
        return f"<KeyFile {self.path} keys={len(self.keys)}>"

    @property
    def has_changed(self) -> bool:
        """Whether it is another one than at the last attempt to read it."""
        return not self._is_stream and self._look() != self._stamp

    def read(self) -> tuple[ApiKey, ...]:
        """Read it; raises `ConfigError`. This version is not read again, even if it is refused."""
        self._stamp = self._look()
        try:
            return parse_keys(self._content())
        except OSError as error:
            raise ConfigError(f"cannot read api_key_file {self.path}: {error.strerror}") from error
        except KeyFileError as error:
            raise ConfigError(f"api_key_file {self.path}: {error}") from error

    def _content(self) -> str:
        """Read the text; raises OSError, `ConfigError`."""
        mode = self.path.stat().st_mode
        is_stream = stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
        if is_stream and self._was_read:
            raise ConfigError(f"api_key_file {self.path} is a pipe now, and was a file")
        text = read_named_text(self.path, _MAX_BYTES)
        self._is_stream, self._was_read = is_stream, True
        return text

    def _look(self) -> _FileVersion:
        try:
            found = self.path.stat()
        except OSError:
            return _FileVersion()
        return _FileVersion(found.st_mtime_ns, found.st_size, found.st_ino)


class _Look:
    """One look at the files, for all requests that came before it begins."""

    ended: asyncio.Future[None]
    has_begun = False


class KeyRing:
    """The keys of the options and of the files; without any, no request needs a key."""

    def __init__(self, given: Sequence[ApiKey] = (), files: Sequence[KeyFile] = ()) -> None:
        """Take the keys; raises `ConfigError` if two of them contradict each other."""
        self._given = tuple(given)
        self._files = tuple(files)
        self._reader = ThreadPoolExecutor(1, "read-keys")
        self._look: _Look | None = None
        """The last look at the files."""
        self._late: asyncio.Future[None] | None = None
        """A reading that has taken longer than a request waits for it."""
        self._keys = self._joined({})

    def __repr__(self) -> str:
        return f"<KeyRing keys={len(self._keys)} files={len(self._files)}>"

    @property
    def is_open(self) -> bool:
        """Whether no key is configured; False with an empty key file, with which all is refused."""
        return not self._given and not self._files

    @property
    def n_keys(self) -> int:
        """Count the keys."""
        return len(self._keys)

    @property
    def has_admin(self) -> bool:
        """Whether any key is an admin's."""
        keys = self._keys.values()
        return self.is_open or any(KeyScope.ADMIN in key.scopes for key in keys)

    def find(self, key: str) -> ApiKey | None:
        """Return the record of a key, also if it has expired; None if the key is unknown.

        The time that a look-up takes depends on the digest, of which a caller who does not know the
        key controls nothing; the digest that was found is compared in constant time.
        """
        wanted = digest(key)
        found = self._keys.get(wanted)
        digests = found.digests if found else ()
        known = next((each for each in digests if each == wanted), _NOBODY)
        return found if hmac.compare_digest(known, wanted) else None

    async def refresh(self) -> None:
        """Read the files again that have changed; a broken one leaves all keys as they were.

        Files are looked at in a thread: on a network file system that hangs even that takes long.
        """
        if not self._files or (self._late is not None and not self._late.done()):
            return  # another request has waited for it already
        look = self._look
        if look is None or look.has_begun:  # it may have looked before this request came
            look = self._look = _Look()
            look.ended = asyncio.get_running_loop().run_in_executor(
                self._reader, self._read_changed, look
            )
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                await asyncio.shield(look.ended)
        except TimeoutError:
            self._late = look.ended

    def _read_changed(self, look: "_Look") -> None:
        """Read what has changed; only the reader's thread calls it."""
        look.has_begun = True
        for file in self._files:
            if file.has_changed:
                self._read_again(file)

    def _read_again(self, file: KeyFile) -> None:
        try:
            keys = file.read()
            self._keys = self._joined({file: keys})
        except ConfigError as error:
            logger.error(
                "key file refused",
                extra={
                    "file": file.path,
                    "cause": error,
                    "action": "the keys that were read last stay valid",
                },
            )
            return
        file.keys = keys
        logger.info("key file read", extra={"file": file.path, "n_keys": len(keys)})

    def _joined(self, fresh: dict[KeyFile, tuple[ApiKey, ...]]) -> dict[bytes, ApiKey]:
        keys = list(self._given)
        for file in self._files:
            keys += fresh.get(file, file.keys)
        found = by_digest(keys)
        if len(found) == 1:
            ((each, only),) = found.items()
            if only.is_plain:  # nobody else could be the admin
                found[each] = plain_key(each, is_admin=True)
        return found


def open_ring(keys: Iterable[str], paths: Iterable[str], admins: Iterable[str] = ()) -> KeyRing:
    """Build the ring of the options; raises `ConfigError` that names an unreadable file."""
    files = [KeyFile(_located(path)) for path in paths]
    for file in files:
        file.keys = file.read()
    given = [plain_key(key) for key in _listed(keys)]
    given += [plain_key(key, is_admin=True) for key in _listed(admins)]
    return KeyRing(given, files)


_CREDENTIALS = "$CREDENTIALS_DIRECTORY"


def _located(path: str) -> Path:
    """Put in the folder of credentials (systemd's `LoadCredential=`), where a path names it."""
    _, named, rest = path.partition(_CREDENTIALS)
    if not named:
        return Path(path)
    folder = os.environ.get(_CREDENTIALS[1:])
    if not folder:
        raise ConfigError(f"api_key_file {named}{rest}: systemd has set no {_CREDENTIALS[1:]}")
    return Path(folder + rest)


def _listed(items: Iterable[str]) -> list[bytes]:
    return [digest(key) for item in items for key in item.split(",") if key]
