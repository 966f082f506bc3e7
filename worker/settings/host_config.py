"""llama.cpp's own configuration files of a host: `config.ini` of the system, then of the user.

All programs of llama.cpp share them, so unknown keys are ignored. Environment variables and flags
take precedence; with a TOML configuration file they are not read.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError, InvalidRequest
from protocol.filenames import expanded, is_file
from protocol.named_file import read_named_text
from worker.settings import ini
from worker.settings.preset import value_of

logger = logging.getLogger("supervisor")

_SYSTEM = Path("/etc/llama.cpp/config.ini")


def host_files(environ: Mapping[str, str]) -> list[Path]:
    """List the existing files; a later one takes precedence over an earlier one."""
    home = environ.get("HOME", "") or expanded("~")
    base = environ.get("XDG_CONFIG_HOME", "") or f"{home}/.config"
    return [path for path in (_SYSTEM, Path(base, "llama.cpp", "config.ini")) if is_file(path)]


def host_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read them as `{field: value}`; raises `ConfigError` that names the file and the key."""
    found: dict[str, Any] = {}
    for path in host_files(environ):
        logger.info("using config file", extra={"file": path})
        try:
            sections = ini.parse(read_named_text(path), origin=str(path))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        for name in (ini.EVERY, ini.UNNAMED):
            for key, text in sections.get(name, {}).items():
                found |= _read(key, text, f"{path}: [{name}]")
    return found


def _read(key: str, text: str, place: str) -> dict[str, Any]:
    try:
        return value_of(key, text) or {}
    except (ValueError, InvalidRequest) as error:
        reason = error.message if isinstance(error, InvalidRequest) else f"{key}: {error}"
        raise ConfigError(f"{place}: {reason}") from error
