"""The public keys of the workers that may connect: a folder, read again when it changes."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from protocol.curve import PUBLIC_SUFFIX, SECRET_SUFFIX, PublicKey, read_public
from protocol.errors import ConfigError
from protocol.filenames import is_file

logger = logging.getLogger(__name__)

_MAX_FILES = 4096
"""Files of a folder of keys; each look at the folder asks for the state of all."""
Stamp = tuple[int, int, int]
"""Inode, time of the last change in ns, size: another content has another stamp."""
_UNKNOWN: Stamp = (0, 0, 0)
"""Of a file whose state cannot be read, such as a loop of links; the others are still compared."""


class AuthorizedKeys:
    """The keys of a folder, as last read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamps: Mapping[str, Stamp] = {}
        self._files: dict[str, PublicKey] = {}
        """File name to its key."""
        self._keys: dict[str, PublicKey] = {}
        self._secrets: set[str] = set()
        """Names of secret keys that lie there."""

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: str) -> PublicKey | None:
        """Return what is known of a key, or None if it is not authorised."""
        return self._keys.get(key)

    def read(self) -> None:
        """Read all files; raises `ConfigError` that names the one at fault."""
        self._stamps = self._look()
        self._files = {name: read_public(self.folder / name) for name in self._stamps}
        self._index()

    def refresh(self) -> bool:
        """Read what has changed since; return whether there was anything.

        A file that cannot be read keeps the key that it had: the fault is logged, once a change.
        """
        try:
            stamps = self._look()
        except ConfigError as error:
            if self._stamps:
                self._complain(self.folder, error)
            self._stamps = {}  # complain once, and read all files when the folder is back
            return False
        if stamps == self._stamps:
            return False
        files: dict[str, PublicKey] = {}
        for name, stamp in stamps.items():
            known = self._files.get(name)
            if known is not None and self._stamps.get(name) == stamp:
                files[name] = known
                continue
            try:
                files[name] = self._read_again(name)
            except ConfigError as error:
                self._complain(self.folder / name, error)
                if known is not None:
                    files[name] = known
        self._stamps, self._files = stamps, files
        self._index()
        return True

    def _read_again(self, name: str) -> PublicKey:
        path = self.folder / name
        if not is_file(path):  # nobody is answered while a pipe or a device is waited for
            raise ConfigError(f"{path}: is no file, or is closed to this user")
        return read_public(path)

    def _index(self) -> None:
        self._keys = {file.key: file for file in self._files.values()}

    def _look(self) -> dict[str, Stamp]:
        try:
            with os.scandir(self.folder) as entries:
                found = sorted(entry.name for entry in entries)
            self._warn_of_secrets({name for name in found if name.endswith(SECRET_SUFFIX)})
            names = [name for name in found if name.endswith(PUBLIC_SUFFIX)]
            if len(names) > _MAX_FILES:
                raise ConfigError(f"{self.folder}: more than {_MAX_FILES} keys")
            return {name: stamp for name in names if (stamp := self._stamp(name)) is not None}
        except OSError as error:
            raise ConfigError(f"cannot read {self.folder}: {error.strerror}") from error

    def _warn_of_secrets(self, names: set[str]) -> None:
        """Log the files that are not read, once each: only public keys belong here."""
        for name in sorted(names - self._secrets):
            logger.warning(
                "secret key ignored",
                extra={
                    "file": self.folder / name,
                    "action": "it authorises nobody",
                    "hint": f"copy the {PUBLIC_SUFFIX} file of the pair here, not this one",
                },
            )
        self._secrets = names

    def _stamp(self, name: str) -> Stamp | None:
        try:
            status = (self.folder / name).stat()
        except FileNotFoundError:
            return None  # it went between listing and looking, or is a link to nothing
        except OSError:
            return _UNKNOWN
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _complain(self, path: Path, error: ConfigError) -> None:
        logger.error(
            "key file unreadable",
            extra={
                "file": path,
                "cause": error,
                "action": "the keys that were read last stay valid",
            },
        )
