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

from protocol.errors import ConfigError, InvalidRequest
from protocol.sampling import INT32_MAX, SamplingParams
from protocol.schema import param, read, refuse_unknown

GGML_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """What the gateway listens to, whom it lets in, and how much it takes."""

    host: str = param("127.0.0.1", "Address to listen on.")
    port: int = param(8080, "Port to listen on; 0 lets the system choose.", low=0, high=65535)
    bind: tuple[str, ...] = param(
        (), "ZeroMQ endpoints for workers; none is ipc in the runtime directory."
    )
    api_key: tuple[str, ...] = param((), "Keys that may use the API; none lets everybody in.")
    api_key_file: tuple[str, ...] = param((), "Files with one key a line; # starts a comment.")
    timeout_s: float = param(600.0, "Longest silence of a client or a task.", low=1)
    queue_size: int = param(0, "Tasks that may wait; 0 is four a slot, at least 16.", low=0)
    queue_timeout_s: float = param(60.0, "Longest wait for a slot.", low=0.1)
    ping_interval_s: float = param(15.0, "Silence after which a stream gets a comment.", low=0.1)
    max_body_mib: int = param(32, "Largest request body.", low=1, high=4096)
    drain_timeout_s: float = param(600.0, "Time that running tasks get at shutdown.", low=0)
    heartbeat_s: float = param(1.0, "Interval of the workers' heartbeats.", low=0.05)
    metrics: bool = param(False, "Serve GET /metrics.")
    slots: bool = param(True, "Serve GET /slots.")
    ssl_key_file: str = param("", "TLS private key (PEM).")
    ssl_cert_file: str = param("", "TLS certificate (PEM).")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One model on the devices that it is given; `count` starts that many alike."""

    name: str = param("", "Name in logs, metrics and slots; empty is the alias and a number.")
    model: str = param("", "GGUF file; empty is the embedded default model.")
    alias: str = param("", "Model name for clients; empty is the file's name.")
    count: int = param(1, "Number of worker processes.", low=1, high=1024)
    connect: tuple[str, ...] = param((), "ZeroMQ endpoints of gateways; none is the local one.")
    backend: str = param("llama", "The engine's lower half.", choices=("llama", "fake"))
    devices: str = param("", "CUDA_VISIBLE_DEVICES of the process; empty leaves it.")
    device_per_worker: bool = param(False, "Give the n-th of `count` only the n-th of `devices`.")
    n_ctx: int = param(0, "Context of all slots together; 0 is the model's.", low=0, high=INT32_MAX)
    n_slots: int = param(1, "Slots: tasks that run at once.", "n_parallel", low=1, high=255)
    n_prefetch: int = param(1, "Tasks sent ahead of a free slot.", low=0, high=16)
    n_batch: int = param(2048, "Most tokens of one decode call.", low=32, high=65536)
    n_ubatch: int = param(512, "Most tokens of one physical batch.", low=32, high=65536)
    n_threads: int = param(0, "CPU threads; 0 is the cores at hand.", low=-1, high=512)
    n_threads_batch: int = param(0, "CPU threads for batches; 0 is `n_threads`.", low=-1, high=512)
    n_gpu_layers: int = param(-1, "Layers on the GPU; -1 is all.", low=-1, high=10000)
    split_mode: str = param(
        "layer", "How a model spreads over GPUs.", choices=("none", "layer", "row", "tensor")
    )
    main_gpu: int = param(0, "GPU of small tensors, or of all with split_mode none.", low=0)
    tensor_split: tuple[float, ...] = param((), "Share of each GPU.")
    use_mmap: bool = param(True, "Map the file instead of reading it.")
    use_mlock: bool = param(False, "Keep the model in RAM.")
    flash_attn: str = param("auto", "Flash attention.", choices=("auto", "on", "off"))
    cache_type_k: str = param("f16", "Type of cached keys.", choices=GGML_TYPES)
    cache_type_v: str = param("f16", "Type of cached values.", choices=GGML_TYPES)
    offload_kqv: bool = param(True, "Keep the KV cache on the GPU.")
    rope_scaling: str = param(
        "", "RoPE scaling; empty is the model's.", choices=("", "none", "linear", "yarn")
    )
    rope_freq_base: float = param(0.0, "RoPE base; 0 is the model's.", low=0)
    rope_freq_scale: float = param(0.0, "RoPE scale; 0 is the model's.", low=0)
    yarn_orig_ctx: int = param(0, "YaRN: context of training.", low=0)
    yarn_ext_factor: float = param(-1.0, "YaRN extrapolation mix; -1 is the model's.")
    yarn_attn_factor: float = param(-1.0, "YaRN attention factor; -1 is the model's.")
    yarn_beta_slow: float = param(-1.0, "YaRN low correction; -1 is the model's.")
    yarn_beta_fast: float = param(-1.0, "YaRN high correction; -1 is the model's.")
    check_tensors: bool = param(False, "Validate the tensors while loading.")
    warmup: bool = param(True, "Decode once before the slots open.")
    context_shift: bool = param(False, "Shift a full context instead of ending.")
    slot_similarity: float = param(
        0.1, "Share of a prompt that a slot must hold to be chosen for it.", low=0, high=1
    )
    step_target_ms: float = param(
        0.0, "Longest engine step while somebody decodes; 0 is 100 on CPU, 40 on GPU.", low=0
    )
    chat_template: str = param("", "Jinja text or built-in name; empty is the model's.")
    sampling: SamplingParams = param(
        SamplingParams(), "What a request takes that leaves a field out."
    )
    stall_s: float = param(10.0, "Shortest silence of a busy engine that means stuck.", low=0.1)
    fake_step_ms: float = param(0.0, "Fake backend: duration of a step.", low=0)
    fake_load_ms: float = param(0.0, "Fake backend: duration of loading.", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """A whole pool."""

    gateway: GatewayConfig = param(GatewayConfig(), "The gateway.")
    worker: tuple[WorkerConfig, ...] = param((), "The workers.")
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


def dump(config: PoolConfig) -> str:
    """Write a configuration as JSON that `load` reads back to an equal one."""
    return json.dumps(dataclasses.asdict(config), indent=1)
