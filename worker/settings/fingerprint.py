"""The fingerprint of a worker's model; workers with equal ones may continue each other's answers.

It covers the weights (by size and samples of their content, so that it is the same on every host)
and every option that changes a text. Options that only change where or how fast a text is computed
do not count; nor do those that only change how sums are rounded, for which there is `rounding`.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from protocol.config.config import WorkerConfig
from protocol.config.device_config import DeviceConfig
from protocol.config.drafting_config import DraftingConfig
from protocol.scaled_file import split_scale
from worker.files.model_file import paths_of

_HEAD_BYTES = 1 << 20
"""Read whole: metadata, vocabulary and the first tensors' names of a GGUF file."""
_N_SAMPLES = 256
_SAMPLE_BYTES = 4096
"""Spread over the rest. Weights of two models of one shape differ nearly everywhere."""
_DIGEST_BYTES = 12
"""Length of a fingerprint."""

_FILES = ("model", "mmproj", "system_prompt_file")
_SCALED_FILES = ("lora", "control_vector")

NEUTRAL = frozenset(
    {
        *(field.name for field in dataclasses.fields(DeviceConfig)),
        *(field.name for field in dataclasses.fields(DraftingConfig)),
        *("name", "alias", "aliases", "tags", "count"),
        *("connect", "curve_key_file", "gateway_keys"),
        *("embeddings", "reranking", "pooling", "attention_type", "embd_normalize"),
        *("model_url", "hf_repo", "hf_file", "hf_token", "offline", "check_tensors"),
        *("mmproj_url", "mmproj_auto", "mmproj_offload", "mmproj_device", "mtmd_batch_max_tokens"),
        *("n_ctx", "n_ctx_per_slot", "n_slots", "n_prefetch", "n_batch", "n_ubatch"),
        *("cache_type_k", "cache_type_v", "kv_unified", "cache_branches", "cache_ram"),
        *("swa_full", "ctx_checkpoints"),
        *("verbose_prompt", "prompts_dir", "warmup", "slot_similarity", "step_target_ms"),
        *("slot_save_path", "slot_quota_mib", "sleep_idle_s", "stall_s", "sampling"),
        *("fake_step_ms", "fake_token_ms", "fake_load_ms"),
    }
)
"""Keys that do not change a text, or travel with each task (`sampling`). Any other key counts."""

_ROUNDING = frozenset(
    {
        *(field.name for field in dataclasses.fields(DeviceConfig)),
        *("n_ctx", "n_slots", "n_batch", "n_ubatch", "cache_type_k", "cache_type_v", "kv_unified"),
        "swa_full",
    }
)


def fingerprint(config: WorkerConfig) -> str:
    """Return the fingerprint of a resolved worker, as hexadecimal digits."""
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for field in sorted(dataclasses.fields(config), key=lambda field: field.name):
        if field.name in NEUTRAL:
            continue
        found.update(f"\n{field.name}=".encode())
        found.update(_bytes_of(config, field.name))
    return found.hexdigest()


def rounding(config: WorkerConfig) -> str:
    """Return the settings that affect rounding; if they and the weights are equal, so are texts."""
    return json.dumps({name: getattr(config, name) for name in sorted(_ROUNDING)})


def _bytes_of(config: WorkerConfig, name: str) -> bytes:
    """Return the value of a key; of files, the digest of their content instead of the path."""
    value = getattr(config, name)
    if name in _FILES:
        return _content(value)
    if name in _SCALED_FILES:
        files = map(split_scale, value)
        return b",".join(_content(file.path) + f":{file.scale!r}".encode() for file in files)
    return json.dumps(value, sort_keys=True).encode()


def _content(path: str) -> bytes:
    """Return the digest of a file with all its parts; of a name without a file, the name."""
    try:
        stamps = tuple(stamp(file) for file in paths_of(Path(path))) if path else ()
        return _digest(stamps) if stamps else b""
    except OSError:
        return path.encode()


def stamp(path: Path) -> tuple[str, int, int, int]:
    """Return what changes when a file is replaced or written: path, inode, size, time in ns."""
    status = path.stat()
    return str(path), status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=64)
def _digest(stamps: tuple[tuple[str, int, int, int], ...]) -> bytes:
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path, _, size, _ in stamps:
        found.update(str(size).encode())
        for piece in _samples(path, size):
            found.update(piece)
    return found.hexdigest().encode()


def _samples(path: str, size: int) -> Iterator[bytes]:
    with Path(path).open("rb") as file:
        yield file.read(_HEAD_BYTES)
        rest = size - _HEAD_BYTES
        for index in range(_N_SAMPLES if rest > 0 else 0):
            file.seek(_HEAD_BYTES + rest * index // _N_SAMPLES)
            yield file.read(_SAMPLE_BYTES)
