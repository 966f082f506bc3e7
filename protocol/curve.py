"""Key files of CURVE, by which gateways and workers identify each other over tcp.

A pair is two TOML files: `NAME.key` with `secret-key`, readable by its owner only, and `NAME.pub`
with `public-key`, to be copied to the other side. Keys are written in Z85, 40 characters, as
ZeroMQ writes them. The public file of a worker may say which names its key stands for:

```toml
public-key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
workers = ["gpu-1/*"]
```
"""

import re
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError
from protocol.named_file import read_named_text

PUBLIC_SUFFIX, SECRET_SUFFIX = ".pub", ".key"
_MAX_BYTES = 64 * 1024
"""Of a key file; ours have some hundred."""
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85 = re.compile(f"[{re.escape(_ALPHABET)}]{{40}}")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key of the other side."""

    key: str
    """In Z85."""
    path: Path
    workers: tuple[str, ...] = ()
    """Shell patterns of the worker names that may use it; empty: any name."""

    def accepts(self, name: str) -> bool:
        """Whether a worker with this key may have this name."""
        return not self.workers or any(fnmatchcase(name, worker) for worker in self.workers)


def read_public(path: Path) -> PublicKey:
    """Read a `.pub` file; raises `ConfigError` that names file and key."""
    table = _table(path)
    if "secret-key" in table:
        raise ConfigError(
            f"{path}: holds a secret key: copy the {PUBLIC_SUFFIX} file, not this one"
        )
    for name in table.keys() - {"public-key", "workers"}:
        raise ConfigError(f"{path}: unknown key '{name}'")
    workers = table.get("workers", [])
    if not isinstance(workers, list) or not all(
        isinstance(worker, str) and worker for worker in workers
    ):
        raise ConfigError(f"{path}: workers must be a list of names or patterns")
    return PublicKey(_key(table, "public-key", path), path, tuple(workers))


def read_secret(path: Path) -> str:
    """Read the secret key of a `.key` file; raises `ConfigError` that names file and key."""
    table = _table(path)
    if "secret-key" not in table and "public-key" in table:
        raise ConfigError(f"{path}: holds a public key: name the {SECRET_SUFFIX} file of the pair")
    return _key(table, "secret-key", path)


def is_exposed(path: Path) -> bool:
    """Whether others than its owner may read a file."""
    return bool(path.stat().st_mode & 0o077)


def public_files(path: Path) -> list[Path]:
    """List the `.pub` files of a folder by name, or the one file; raises `ConfigError`."""
    try:
        if not path.is_dir():
            return [path]
        return sorted(file for file in path.iterdir() if file.suffix == PUBLIC_SUFFIX)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def public_text(key: str, workers: tuple[str, ...] = ()) -> str:
    """Write a `.pub` file."""
    names = ", ".join(f'"{worker}"' for worker in workers)
    return f'public-key = "{key}"\n' + (f"workers = [{names}]\n" if names else "")


def secret_text(key: str) -> str:
    """Write a `.key` file."""
    return f'secret-key = "{key}"\n'


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_named_text(path, _MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is no key file: {error}") from error


def _key(table: dict[str, Any], name: str, path: Path) -> str:
    key = table.get(name)
    if not isinstance(key, str) or not _Z85.fullmatch(key) or not _fits(key):
        raise ConfigError(f"{path}: {name} must be a key of 40 characters, as keygen writes it")
    return key


def _fits(key: str) -> bool:
    """Whether each five characters stand for four bytes."""
    groups = (key[start : start + 5] for start in range(0, len(key), 5))
    return all(_value(group) < 2**32 for group in groups)


def _value(group: str) -> int:
    value = 0
    for character in group:
        value = value * 85 + _ALPHABET.index(character)
    return value
