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
from protocol.config.rollout_config import RolloutConfig
from protocol.config.usage_config import UsageConfig
from protocol.config.worker_config import WorkerConfig
from protocol.errors import ConfigError, InvalidRequest
from protocol.named_file import read_named_text
from protocol.wire.schema import param, read, refuse_unknown

__all__ = ["GatewayConfig", "LogConfig", "PoolConfig", "WorkerConfig", "dump", "load", "parse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What every process of the pool writes to its log, and how."""

    verbosity: int = param(
        3,
        "What is logged: 1 errors, 2 warnings as well, 3 events as well, 4 and above debug "
        "lines as well; 0 means 3.",
        low=0,
    )
    format: str = param(
        "text",
        "Form of a log line: `text`, or `json`, one JSON object a line.",
        choices=("text", "json"),
    )
    file: str = param(
        "", "File that log lines are appended to, besides standard error; empty: none."
    )
    colors: str = param(
        "auto",
        "Colour the level of a line: always (on), never (off), or only on a terminal (auto).",
        choices=("auto", "on", "off"),
    )
    prefix: bool = param(True, "Write level and component before each message.")
    timestamps: bool = param(True, "Write the time before each message.")
    access: bool = param(True, "Write one line for each HTTP request.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Addresses of the gateway, its keys, and its limits."""

    host: str = param(
        "127.0.0.1",
        "Addresses to listen on, separated by commas. A path that ends in .sock is a Unix socket.",
    )
    port: int = param(
        8080, "TCP port to listen on; 0: the system chooses a free one.", low=0, high=65535
    )
    gateways: int = param(
        1,
        "Gateway processes on this host, which share the listening sockets; a second one pays when"
        " one core cannot keep up with the streams.",
        low=1,
        high=64,
    )
    bind: tuple[str, ...] = param(
        (),
        "ZeroMQ endpoints that workers connect to, ipc://PATH or tcp://HOST:PORT; tcp needs keys. "
        "Empty: one ipc socket in the runtime directory.",
    )
    curve_key_file: str = param(
        "", "Secret key of this gateway for tcp, as `llamapool keygen` writes it; empty: no tcp."
    )
    worker_keys: str = param(
        "",
        "Folder of the public keys (*.pub) of the workers that may connect over tcp; it is read "
        "again when it changes.",
    )
    api_key: tuple[str, ...] = param(
        (),
        "API keys, separated by commas; a request must carry one of them. Empty, with no key "
        "file: no key is needed.",
    )
    api_key_file: tuple[str, ...] = param(
        (),
        "Key file: TOML with a `[[key]]` table for each key, as `llamapool key` writes it, or one "
        "key a line, where `KEY admin` marks an admin's key and `#` starts a comment. It is read "
        "again when it changes. `$CREDENTIALS_DIRECTORY/NAME` is a credential of systemd.",
    )
    api_key_admin: tuple[str, ...] = param(
        (),
        "API keys, separated by commas, that may also change the server for all clients. A "
        "single key is always an admin's.",
    )
    require_key: bool = param(
        False, "Refuse to start without a key if the server can be reached from other hosts."
    )
    allowed_hosts: tuple[str, ...] = param(
        (),
        "Host names that a request may be addressed to, separated by commas; `*`: any. Empty: "
        "this host's own names if only this host can connect and there is no key, else any.",
    )
    trusted_proxies: tuple[str, ...] = param(
        (),
        "Proxies, as ADDRESS or NETWORK/BITS separated by commas, whose header names the "
        "client's address.",
    )
    trusted_proxy_header: str = param(
        "x-forwarded-for",
        "Header in which a trusted proxy writes the client's address; the other one is ignored.",
        choices=("x-forwarded-for", "forwarded"),
    )
    cache_isolation: str = param(
        "",
        "Who may reuse a cached prompt: `key`, only requests with the same API key; `none`, all"
        " requests. Empty: `key` if there are two keys or more.",
        choices=("", "key", "none"),
    )
    timeout_s: float = param(
        600.0,
        "Seconds without data from or to a client before its connection is closed; also the "
        "longest load of a model. -1 as an option: no limit.",
        low=1,
    )
    queue_size: int = param(
        0,
        "Tasks of one model that may wait for a slot; beyond it, 429. 0: four a slot, at least 16.",
        low=0,
    )
    queue_timeout_s: float = param(
        60.0,
        "Seconds that a task may wait for a slot; after that 429, or 503 if no worker is ready.",
        low=0.1,
    )
    continues: bool = param(
        True,
        "Let another worker continue an answer whose worker is lost. Otherwise a stream that has "
        "started ends with an error.",
    )
    ping_interval_s: float = param(
        15.0,
        "Seconds of silence after which a stream gets a comment line, so that proxies keep it "
        "open; -1 or 0 as an option: never.",
        low=0.1,
    )
    max_body_mib: int = param(64, "Largest request body, in MiB.", low=1, high=4096)
    limits: LimitsConfig = param(LimitsConfig(), "Bounds of a request.")
    usage_dir: str = param(
        "",
        "Folder of the usage log and its database, on a local disk; empty: `usage` in systemd's "
        "StateDirectory, and without one no usage is kept.",
    )
    usage: UsageConfig = param(UsageConfig(), "The usage log.")
    drain_timeout_s: float = param(
        600.0, "Seconds that running tasks have to finish at shutdown.", low=0
    )
    models_dir: str = param(
        "", "Folder of GGUF models that are loaded when a request names them; empty: none."
    )
    models_preset: str = param(
        "", "INI file of models and their options, loaded when a request names them; empty: none."
    )
    models_cache: bool = param(
        True,
        "With models_dir or models_preset, list the models of the Hugging Face cache, too, as "
        "llama-server does.",
    )
    models_on_demand: bool = param(
        False,
        "Load models when a request names them also without models_dir and models_preset, unless a "
        "model is given; --models-max and --models-autoload turn it on.",
    )
    models_max: int = param(4, "Largest number of such models loaded at once; 0: no limit.", low=-1)
    models_autoload: bool = param(
        True, "Load a model when a request names it; if off, only POST /models/load does."
    )
    control: str = param("", "Unix socket of the supervisor; `llamapool serve` sets it.")
    admin_socket: str = param(
        "",
        "Unix socket of the admin API, for users who may enter its folder; empty: `admin.sock` in "
        "the runtime directory.",
    )
    siblings: str = param(
        "", "Folder in which the gateways of this host find one another; `llamapool serve` sets it."
    )
    heartbeat_s: float = param(
        1.0, "Seconds between two heartbeats of a worker.", low=0.05, high=3600
    )
    metrics: bool = param(False, "Serve Prometheus metrics at GET /metrics.")
    otel: bool = param(
        False,
        "Send OpenTelemetry traces of requests, as the OTEL_... variables say; needs "
        "`pip install llamapool[otel]`.",
    )
    slots: bool = param(True, "Serve the state of each slot at GET /slots.")
    props: bool = param(False, "Serve POST /props.")
    ssl_key_file: str = param("", "Private key for TLS (PEM file, not encrypted); empty: no TLS.")
    ssl_cert_file: str = param("", "Certificate for TLS (PEM file); empty: no TLS.")
    reuse_port: bool = param(False, "Let other processes listen on the same port (SO_REUSEPORT).")
    api_prefix: str = param(
        "", "Path before every endpoint, without a slash at its end; empty: none."
    )
    predict_route: str = param("", "Path of Vertex AI's predictions; empty: none.")
    health_route: str = param("", "Second path of GET /health; empty: none.")
    verbose: bool = param(
        False, "Add `__verbose`, the native answer, to answers of the OpenAI API."
    )
    ui: bool = param(True, "Serve the built-in web page at /.")
    ui_config: str = param(
        "", "JSON object of settings that the web page starts with; also shown in /props."
    )
    n_threads: int = param(
        0,
        "Threads of the gateway for work beside its event loop; 0 or -1: chosen.",
        low=-1,
        high=512,
    )
    static_path: str = param(
        "", "Folder served at / instead of the built-in web page; empty: the built-in page."
    )
    media_path: str = param(
        "",
        "Folder below which file:// URLs of images and sounds may point; empty: no file:// URL "
        "is taken.",
    )
    media_url_allow: tuple[str, ...] = param(
        (),
        "Hosts that images and sounds may be fetched from, separated by commas: HOST, *.DOMAIN,"
        " `*`, or an ADDRESS or NETWORK/BITS, which also allows addresses that are not public; "
        "each may end in :PORT. Empty: nothing is fetched.",
    )
    cors_origins: tuple[str, ...] = param(
        ("*",),
        "Origins whose web pages may read answers, separated by commas; `*`: any, `localhost`: "
        "pages of this host.",
    )
    cors_methods: tuple[str, ...] = param(
        ("GET", "POST", "DELETE", "OPTIONS"),
        "Methods that such pages may use, separated by commas.",
    )
    cors_headers: tuple[str, ...] = param(
        ("*",), "Headers that such pages may send, separated by commas; `*`: any."
    )
    cors_credentials: bool = param(True, "Let such pages send credentials, such as cookies.")

    @property
    def has_keys(self) -> bool:
        """Whether a key is needed; a text without any key in it asks for none."""
        texts = (*self.api_key, *self.api_key_admin)
        return bool(self.api_key_file) or any(text.strip(", ") for text in texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """A whole pool."""

    gateway: GatewayConfig = param(GatewayConfig(), "The gateway.")
    worker: tuple[WorkerConfig, ...] = param((), "The workers, one table for each model.")
    log: LogConfig = param(LogConfig(), "The log.")
    rollout: RolloutConfig = param(RolloutConfig(), "How workers are replaced.")
    runtime_dir: str = param(
        "", "Folder of sockets and of the resolved configuration; empty: a new temporary folder."
    )


_MAX_WORKERS = 1024
"""Tables `[[worker]]` of a file."""


def load(path: Path) -> PoolConfig:
    """Read a TOML or JSON file; raises `ConfigError` that names the file and the key."""
    try:
        text = read_named_text(path)
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deep") from error
    return parse(table, origin=str(path))


def parse(table: Any, *, origin: str = "configuration") -> PoolConfig:
    """Turn a decoded table into a `PoolConfig`; raises `ConfigError` that names the key."""
    if not isinstance(table, dict):
        raise ConfigError(f"{origin}: must be a table")
    _refuse_nul(table, origin)
    try:
        refuse_unknown(PoolConfig, table)
        workers = table.get("worker")
        if isinstance(workers, list) and len(workers) > _MAX_WORKERS:
            raise ConfigError(f"{origin}: more than {_MAX_WORKERS} workers")
        return read(PoolConfig(), table)
    except InvalidRequest as error:
        raise ConfigError(f"{origin}: {error.message}") from error


def _refuse_nul(table: dict[str, Any], origin: str) -> None:
    """Raise `ConfigError` for a text that contains NUL, which neither a path nor a name may."""
    waiting: list[tuple[str, Any]] = [*table.items()]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{name}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(name, item) for item in value]
        elif isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{origin}: {name} contains the character NUL")


def without_secrets(config: PoolConfig) -> PoolConfig:
    """Return what every process of the pool may know: neither keys nor tokens."""
    return dataclasses.replace(
        config,
        gateway=dataclasses.replace(config.gateway, api_key=(), api_key_admin=()),
        worker=tuple(dataclasses.replace(worker, hf_token="") for worker in config.worker),
    )


def dump(config: PoolConfig) -> str:
    """Write a configuration as JSON for `load`, without its secrets.

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
