"""The configuration of a pool: one TOML (or JSON) file, typed, every key declared once.

```toml
[gateway]
port = 8080

[[worker]]
name = "small"
model = "model.gguf"
count = 2
```

An unknown key is an error with its path and the nearest known one. The supervisor resolves a
configuration and hands it to each process as JSON, so this file is all that they share of it.
"""

import dataclasses
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.config.limits import LimitsConfig
from protocol.config.worker_config import WorkerConfig
from protocol.errors import ConfigError, InvalidRequest
from protocol.wire.schema import param, read, refuse_unknown

__all__ = ["GatewayConfig", "LogConfig", "PoolConfig", "WorkerConfig", "dump", "load", "parse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What every process of the pool writes to its log, and how."""

    verbosity: int = param(
        3, "1 errors, 2 warnings, 3 (or 0) what happens, 4 and more everything.", low=0
    )
    format: str = param("text", "Lines of text, or a JSON object each.", choices=("text", "json"))
    file: str = param("", "File that gets the lines too; empty is none.")
    colors: str = param("auto", "Colour levels on a terminal.", choices=("auto", "on", "off"))
    prefix: bool = param(True, "Say level and part before the message.")
    timestamps: bool = param(True, "Say the time before the message.")
    access: bool = param(True, "One line a request.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """What the gateway listens to, whom it lets in, and how much it takes."""

    host: str = param("127.0.0.1", "Addresses to listen on, by commas; a PATH.sock too.")
    port: int = param(8080, "Port to listen on; 0 lets the system choose.", low=0, high=65535)
    bind: tuple[str, ...] = param(
        (), "ZeroMQ endpoints for workers; none is ipc in the runtime directory."
    )
    api_key: tuple[str, ...] = param((), "Keys that may use the API; none lets everybody in.")
    api_key_file: tuple[str, ...] = param(
        (), "Files with one key a line, `admin` behind those of admins; # starts a comment."
    )
    api_key_admin: tuple[str, ...] = param(
        (), "Keys that may also change the server for all; a key without others is such a one."
    )
    require_key: bool = param(False, "Refuse to listen beyond this host without a key.")
    allowed_hosts: tuple[str, ...] = param(
        (),
        "Names under which it may be asked for, * is any; empty is this host's own where only this"
        " host reaches it and there is no key, else any.",
    )
    trusted_proxies: tuple[str, ...] = param(
        (), "ADDRESS or NETWORK/BITS of proxies whose word on their clients' addresses is taken."
    )
    trusted_proxy_header: str = param(
        "x-forwarded-for",
        "The header that they write; what clients send of the other is not looked at.",
        choices=("x-forwarded-for", "forwarded"),
    )
    cache_isolation: str = param(
        "",
        "Reuse cached prompts for the key they came with only; empty is so with two keys or more.",
        choices=("", "key", "none"),
    )
    timeout_s: float = param(
        600.0, "Longest silence of a client, and the longest load of a model.", low=1
    )
    queue_size: int = param(0, "Tasks that may wait; 0 is four a slot, at least 16.", low=0)
    queue_timeout_s: float = param(60.0, "Longest wait for a slot.", low=0.1)
    ping_interval_s: float = param(15.0, "Silence after which a stream gets a comment.", low=0.1)
    max_body_mib: int = param(64, "Largest request body.", low=1, high=4096)
    limits: LimitsConfig = param(LimitsConfig(), "Bounds of a request.")
    drain_timeout_s: float = param(600.0, "Time that running tasks get at shutdown.", low=0)
    models_dir: str = param("", "Folder of models to load as requests ask for them.")
    models_preset: str = param("", "INI file of such models and their options.")
    models_max: int = param(4, "Most of them loaded at once; 0 is no limit.", low=-1)
    models_autoload: bool = param(True, "Load a model when a request names it.")
    control: str = param("", "Socket of the supervisor; `serve` sets it.")
    heartbeat_s: float = param(1.0, "Interval of the workers' heartbeats.", low=0.05)
    metrics: bool = param(False, "Serve GET /metrics.")
    slots: bool = param(True, "Serve GET /slots.")
    props: bool = param(False, "Serve POST /props.")
    ssl_key_file: str = param("", "TLS private key (PEM).")
    ssl_cert_file: str = param("", "TLS certificate (PEM).")
    reuse_port: bool = param(False, "Let other processes listen on the same port.")
    api_prefix: str = param("", "Path before every endpoint, without a slash at its end.")
    predict_route: str = param("", "Path of Vertex AI's predictions; empty is none.")
    health_route: str = param("", "One more path of GET /health; empty is none.")
    verbose: bool = param(False, "Add `__verbose`, the native answer, to OpenAI's answers.")
    ui: bool = param(True, "Serve the built-in page at /.")
    ui_config: str = param("", "Settings that pages begin with, a JSON object; in /props.")
    n_threads: int = param(
        0, "Threads for work beside the event loop; 0 is chosen.", low=-1, high=512
    )
    static_path: str = param("", "Directory served at / instead of the built-in page.")
    media_path: str = param("", "Folder of the files that file:// URLs may name; empty is none.")
    media_url_allow: tuple[str, ...] = param(
        (),
        "Hosts that images and sounds may be fetched from: HOST, *.DOMAIN, *, or an ADDRESS or"
        " NETWORK/BITS, which also allows addresses that are not public; :PORT behind it.",
    )
    cors_origins: tuple[str, ...] = param(
        ("*",), "Origins that pages may call from; * is any, localhost this host's."
    )
    cors_methods: tuple[str, ...] = param(
        ("GET", "POST", "DELETE", "OPTIONS"), "Methods that such pages may use."
    )
    cors_headers: tuple[str, ...] = param(("*",), "Headers that such pages may send.")
    cors_credentials: bool = param(True, "Let such pages send cookies and the like.")

    @property
    def has_keys(self) -> bool:
        """Whether a key is needed; a text without any key in it asks for none."""
        texts = (*self.api_key, *self.api_key_admin)
        return bool(self.api_key_file) or any(text.strip(", ") for text in texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """A whole pool."""

    gateway: GatewayConfig = param(GatewayConfig(), "The gateway.")
    worker: tuple[WorkerConfig, ...] = param((), "The workers.")
    log: LogConfig = param(LogConfig(), "The log.")
    runtime_dir: str = param("", "Directory of sockets and the resolved configuration.")


def load(path: Path) -> PoolConfig:
    """Read a TOML or JSON file; raises `ConfigError` that names the file and the key."""
    try:
        text = path.read_bytes().decode()
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    return parse(table, origin=str(path))


def parse(table: Any, *, origin: str = "configuration") -> PoolConfig:
    """Turn a decoded table into a `PoolConfig`; raises `ConfigError` that names the key."""
    if not isinstance(table, dict):
        raise ConfigError(f"{origin}: must be a table")
    try:
        refuse_unknown(PoolConfig, table)
        return read(PoolConfig(), table)
    except InvalidRequest as error:
        raise ConfigError(f"{origin}: {error.message}") from error


def without_secrets(config: PoolConfig) -> PoolConfig:
    """Return what every process of the pool may know: neither keys nor tokens."""
    return dataclasses.replace(
        config,
        gateway=dataclasses.replace(config.gateway, api_key=(), api_key_admin=()),
        worker=tuple(dataclasses.replace(one, hf_token="") for one in config.worker),
    )


def dump(config: PoolConfig) -> str:
    """Write a configuration as JSON that `load` reads back, but for its secrets.

    Workers read what is written here, and they parse what strangers made.
    """
    return json.dumps(dataclasses.asdict(without_secrets(config)), indent=1)


def dump_keys(config: GatewayConfig) -> bytes:
    """Write the keys alone, for the gateway; empty if there are none."""
    keys = {"api_key": config.api_key, "api_key_admin": config.api_key_admin}
    return json.dumps(keys).encode() if any(keys.values()) else b""


def load_keys(config: GatewayConfig, data: bytes) -> GatewayConfig:
    """Put back the keys that `dump_keys` has written; raises `ConfigError` if they are not all."""
    try:
        table = json.loads(data)
        refuse_unknown(GatewayConfig, table)
        config = read(config, table)
    except (ValueError, TypeError, AttributeError, InvalidRequest) as error:
        raise ConfigError(f"no keys came on standard input: {error}") from error
    if not (config.api_key or config.api_key_admin):
        raise ConfigError("no keys came on standard input")
    return config
