"""One model on the devices that it is given: a `[[worker]]` table, every key declared once."""

import json
from dataclasses import dataclass
from typing import Any

from protocol.config.chat_config import ChatConfig
from protocol.config.device_config import DeviceConfig
from protocol.config.drafting_config import GGML_TYPES, DraftingConfig
from protocol.config.model_config import ModelConfig
from protocol.wire.sampling import INT32_MAX, SamplingParams
from protocol.wire.schema import param

POOLINGS = ("none", "mean", "cls", "last", "rank")


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(DraftingConfig, ChatConfig, DeviceConfig, ModelConfig):
    """One model on the devices that it is given; `count` starts that many processes.

    The keys of its base classes are keys of the same table.
    """

    count: int = param(1, "Number of worker processes that serve this model.", low=1, high=1024)
    connect: tuple[str, ...] = param(
        (),
        "ZeroMQ endpoints of the gateways that the worker serves, each one dialled; empty: the one"
        " on this host. tcp needs keys.",
    )
    curve_key_file: str = param(
        "", "Secret key of this worker for tcp, as `llamapool keygen` writes it; empty: no tcp."
    )
    gateway_keys: tuple[str, ...] = param(
        (), "Public keys (*.pub) of the gateways that are dialled over tcp: files, or folders."
    )
    backend: str = param(
        "llama",
        "What computes: `llama`, llama.cpp; `fake`, invented text for tests.",
        choices=("llama", "fake"),
    )
    n_ctx: int = param(
        0,
        "Context size in tokens, shared by all slots; 0: what the model was trained on, for each "
        "slot if memory reaches.",
        low=0,
        high=INT32_MAX,
    )
    n_ctx_per_slot: int = param(
        0,
        "Largest context of one slot, in tokens, with a unified cache; without `n_ctx` the "
        "whole context is this times the number of slots. 0: no such bound.",
        low=0,
        high=INT32_MAX,
    )
    n_slots: int = param(
        1,
        "Number of slots, which is the number of requests that one worker computes at the same "
        "time; -1: four that share the whole context.",
        "n_parallel",
        low=-1,
        high=256,
    )
    n_prefetch: int = param(
        1,
        "Tasks sent to a worker before it has a free slot, so that the next one starts at once.",
        low=0,
        high=16,
    )
    n_batch: int = param(
        2048,
        "Largest number of tokens in one call of llama_decode (logical batch), at most the "
        "context; -1 as an option: the context.",
        low=1,
        high=INT32_MAX,
    )
    n_ubatch: int = param(
        512,
        "Largest number of tokens computed at once on the device (physical batch); 0: as "
        "`n_batch`.",
        low=0,
        high=INT32_MAX,
    )
    cache_type_k: str = param("f16", "Data type of the keys in the KV cache.", choices=GGML_TYPES)
    cache_type_v: str = param("f16", "Data type of the values in the KV cache.", choices=GGML_TYPES)
    kv_unified: bool = param(
        False,
        "Share one KV cache between all slots: any request may use the whole context, and waits"
        " if others use it. Off: each slot has a cache of its own, with an equal part.",
    )
    cache_branches: int = param(
        32,
        "Finished prompts kept in a unified KV cache beside those of the slots.",
        low=0,
        high=255,
    )
    cache_ram: int = param(
        8192,
        "RAM for prompts that had to leave the KV cache, in MiB; 0: none, -1: no limit.",
        low=-1,
    )
    swa_full: bool = param(
        False,
        "Give layers with sliding windows as large a cache as the others, so that a full context "
        "can be shifted. Off: one window for each slot.",
    )
    ctx_checkpoints: int = param(
        32,
        "Largest number of checkpoints of a slot: places up to which a prompt can be used again "
        "if the model has recurrent layers or sliding windows; 0: none.",
        low=0,
        high=4096,
    )
    verbose_prompt: bool = param(False, "Log the text of every prompt.")
    prompts_dir: str = param(
        "", "Folder in which each prompt is written to a file, for debugging; empty: none."
    )
    warmup: bool = param(
        True, "Compute one token after loading, so that the first request does not wait for it."
    )
    context_shift: bool = param(
        False,
        "When the context of a slot is full, drop its oldest tokens and go on. Off: the answer "
        "ends there.",
    )
    slot_similarity: float = param(
        0.1,
        "Share of a prompt, 0 to 1, that an idle slot must hold to be chosen for it.",
        low=0,
        high=1,
    )
    step_target_ms: float = param(
        0.0,
        "Longest duration of one engine step while answers are streamed, in milliseconds: lower"
        " gives steadier streams, higher reads prompts faster. 0: 200 on a CPU, 40 on a GPU.",
        low=0,
    )
    slot_save_path: str = param("", "Folder of saved slots; empty: slots cannot be saved.")
    slot_quota_mib: int = param(
        16384,
        "Most disk space for the saved slots of one API key, in MiB, where keys have folders of"
        " their own; 0: no limit.",
        low=0,
        high=INT32_MAX,
    )
    embeddings: bool = param(
        False, "Serve embeddings, beside generation if the model can generate."
    )
    reranking: bool = param(False, "Serve reranking; sets --embeddings and --pooling rank.")
    pooling: str = param(
        "",
        "How the vectors of an input's tokens become one embedding; empty: the model's, or mean"
        " if it has none.",
        choices=("", *POOLINGS),
    )
    attention_type: str = param(
        "", "Attention for embeddings; empty: the model's.", choices=("", "causal", "non-causal")
    )
    embd_normalize: int = param(
        2,
        "Normalisation of embeddings: -1 none, 0 largest absolute value as int16, 1 taxicab, 2 "
        "Euclidean, N above 2 the N-norm.",
        low=-1,
        high=INT32_MAX,
    )
    sampling: SamplingParams = param(SamplingParams(), "Defaults of request fields.")
    sleep_idle_s: float = param(
        -1.0,
        "Seconds without a task after which a worker frees its model until the next task; -1: "
        "never.",
        low=-1,
    )
    stall_s: float = param(
        10.0,
        "Seconds that a step of the engine may take before the worker counts as stuck; after "
        "slow steps, more.",
        low=0.1,
        high=1e9,
    )
    fake_step_ms: float = param(0.0, "Fake backend: duration of a step, in milliseconds.", low=0)
    fake_token_ms: float = param(
        0.0, "Fake backend: what each token of a step adds to it, in milliseconds.", low=0
    )
    fake_load_ms: float = param(0.0, "Fake backend: duration of loading, in milliseconds.", low=0)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of each of its processes."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number + 1}" for number in range(self.count))

    @property
    def chat_variables(self) -> dict[str, Any]:
        """Return the variables of the template that every chat begins with; raises ValueError."""
        found: dict[str, Any] = {"preserve_reasoning": self.reasoning_preserve}
        if self.template_kwargs:
            found |= json.loads(self.template_kwargs)
        if self.reasoning != "auto":
            found["enable_thinking"] = self.reasoning == "on"
        if self.reasoning_effort:
            found["reasoning_effort"] = self.reasoning_effort
        return found


def alias_names(text: str) -> set[str]:
    """Return the names that an alias gives, separated by commas."""
    return {name.strip() for name in text.split(",")} - {""}
