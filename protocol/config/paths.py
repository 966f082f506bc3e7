"""Which settings are paths, and where relative ones begin: a file's at its folder.

`tests/protocol/config/test_paths.py` finds settings that are missing here.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from protocol.config.config import GatewayConfig, LogConfig, PoolConfig, WorkerConfig
from protocol.endpoint import UNIX_SUFFIX
from protocol.filenames import expanded

PATHS: dict[type, tuple[str, ...]] = {
    PoolConfig: ("runtime_dir",),
    LogConfig: ("file",),
    GatewayConfig: (
        *("host", "bind", "control", "admin_socket", "siblings", "curve_key_file", "worker_keys"),
        *("api_key_file", "ssl_key_file", "ssl_cert_file", "static_path", "media_path"),
        *("models_dir", "models_preset", "usage_dir"),
    ),
    WorkerConfig: (
        *("model", "model_draft", "mmproj", "lora", "control_vector", "system_prompt_file"),
        *("lookup_cache_static", "lookup_cache_dynamic", "slot_save_path", "prompts_dir"),
        *("connect", "curve_key_file", "gateway_keys"),
    ),
}
"""Keys with a path, or several, by their table."""
_IPC = "ipc://"
_Part = TypeVar("_Part", PoolConfig, GatewayConfig, WorkerConfig, LogConfig)


def anchored(config: PoolConfig, folder: Path) -> PoolConfig:
    """Resolve the relative paths of a configuration against a folder."""
    return replace(
        _anchored(config, folder),
        gateway=_anchored(config.gateway, folder),
        worker=tuple(_anchored(worker, folder) for worker in config.worker),
        log=_anchored(config.log, folder),
    )


def _anchored(part: _Part, folder: Path) -> _Part:
    moved: dict[str, Any] = {}
    for name in PATHS[type(part)]:
        value, anchor = getattr(part, name), partial(_ANCHORS.get(name, _path), folder)
        moved[name] = anchor(value) if isinstance(value, str) else tuple(map(anchor, value))
    return replace(part, **moved)


def _path(folder: Path, text: str) -> str:
    return str(folder / expanded(text)) if text else ""


def _hosts(folder: Path, text: str) -> str:
    """Resolve those of several addresses that are paths of Unix sockets."""
    hosts = [host.strip() for host in text.split(",")]
    if not any(host.endswith(UNIX_SUFFIX) for host in hosts):
        return text
    return ",".join(_path(folder, host) if host.endswith(UNIX_SUFFIX) else host for host in hosts)


def _endpoint(folder: Path, text: str) -> str:
    path = text.removeprefix(_IPC)
    return text if path == text or path.startswith("@") else _IPC + _path(folder, path)


_ANCHORS = {"host": _hosts, "bind": _endpoint, "connect": _endpoint}
"""How those are resolved that are not paths alone."""
