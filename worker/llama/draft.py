"""A small draft model for a large one, with a context of its own that follows the slots.

It drafts greedily; the slots' samplers accept or reject. Errors here cost speed only.
"""

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.engine.backend import Backend, BatchRow
from worker.engine.cache.prefix import common_prefix
from worker.engine.speculation.draft import Drafter, DraftRequest
from worker.llama.backend import LlamaBackend
from worker.llama.batch import Batch
from worker.llama.model import LoadedModel, can_generate, is_recurrent, load
from worker.llama.vocabulary import LlamaVocabulary

logger = logging.getLogger(__name__)

MAX_VOCAB_DIFFERENCE = 128
"""Allowed difference of the vocabularies' sizes in tokens, as in llama.cpp."""
FIRST_COMPARED = 5
"""Tokens before this one are control tokens, whose texts may differ."""
CATCH_UP = 128
"""Prompt tokens that a CPU reads in a step at most, so that a long prompt does not delay streams.
A GPU reads a whole batch in the time of a step or two."""


class DraftModel(Drafter):
    """A `Drafter` with a second model of llama.cpp."""

    def __init__(self, config: WorkerConfig, target: LlamaVocabulary, n_ctx_slot: int) -> None:
        self._loaded = load(_of_draft(config, n_ctx_slot), lambda _fraction: None)
        self._vocab = LlamaVocabulary(lib.llama_model_get_vocab(self._loaded.model))
        fault = _mismatch(target, self._vocab) or _unfit(self._loaded)
        if fault:
            self._loaded.close()
            name = Path(config.model_draft).name
            raise ConfigError(f"model_draft {name}: {fault}; take one of the same family")
        self._memory = lib.llama_get_memory(self._loaded.context)
        self._batch = Batch(int(lib.llama_n_batch(self._loaded.context)))
        self._n_read_at_once = self._batch.capacity if self._loaded.is_gpu else CATCH_UP
        self._p_min = config.draft_p_min
        self._n_min = config.n_draft_min
        self._n_target = target.n_tokens
        self.n_max = config.n_draft
        self._cached: dict[int, list[int]] = {}
        """Tokens in the cache of each sequence."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Draft for all requests in the same batches, one token of each at a time."""
        drafts: dict[int, list[int]] = {request.slot: [] for request in requests}
        rows = self._catch_up(requests)
        left = {request.slot: request.n_max for request in requests}
        least = {
            request.slot: self._p_min if request.p_min is None else request.p_min
            for request in requests
        }
        while rows and self._decode(rows):
            following: list[BatchRow] = []
            for index, row in enumerate(rows):
                token = self._likeliest(index, least[row.seq]) if row.wants_logits else -1
                if token < 0:
                    continue
                drafts[row.seq].append(token)
                left[row.seq] -= 1
                if left[row.seq] > 0 and not lib.llama_vocab_is_eog(self._vocab.handle, token):
                    following.append(BatchRow(row.seq, row.pos + len(row.tokens), (token,), True))
            rows = following
        return [request.kept(drafts[request.slot], self._n_min) for request in requests]

    def close(self) -> None:
        """Free model and context."""
        self._loaded.close()

    # -------------------------------------------------------------------------------------------

    def _catch_up(self, requests: Sequence[DraftRequest]) -> list[BatchRow]:
        """Return the rows to read first; a slot far behind gets no draft in this step."""
        rows: list[BatchRow] = []
        budget = min(self._n_read_at_once, self._batch.capacity - len(requests))
        for request in requests:
            if len(request.tokens) + request.n_max > self._loaded.n_ctx_slot:
                continue
            cached = self._cached.setdefault(request.slot, [])
            start = min(common_prefix(cached, request.tokens), len(request.tokens) - 1)
            if start < len(cached):
                lib.llama_memory_seq_rm(self._memory, request.slot, start, -1)
                del cached[start:]
            n = min(len(request.tokens) - start, budget + 1)
            budget -= n - 1
            is_all = start + n == len(request.tokens)
            rows.append(BatchRow(request.slot, start, request.tokens[start : start + n], is_all))
        return rows

    def _decode(self, rows: Sequence[BatchRow]) -> bool:
        self._batch.fill(rows)
        code = int(lib.llama_decode(self._loaded.context, self._batch.raw))
        if code == 0:
            for row in rows:
                self._cached[row.seq] += row.tokens
            return True
        logger.warning(
            "draft model failed",
            extra={"code": code, "action": "its cache is emptied and computed again"},
        )
        lib.llama_memory_clear(self._memory, True)
        self._cached.clear()
        return False

    def _likeliest(self, row: int, p_min: float) -> int:
        """Return the best token of a row, or -1 if it is not likely enough."""
        pointer = lib.llama_get_logits_ith(self._loaded.context, self._batch.last[row])
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        assert address is not None, f"row {row} has no logits"
        raw = (ctypes.c_float * self._vocab.n_tokens).from_address(address)
        logits = np.frombuffer(memoryview(raw), np.float32)[: self._n_target]
        token = int(logits.argmax())
        if p_min > 0:
            p = 1.0 / float(np.exp(logits - logits[token], dtype=np.float64).sum())
            return token if p >= p_min else -1
        return token


def open_draft_model(config: WorkerConfig, backend: Backend) -> DraftModel:
    """Load the draft model of a worker; raises `ConfigError` if it does not fit the model."""
    assert isinstance(backend, LlamaBackend)
    return DraftModel(config, backend.tokens, backend.card.n_ctx)


def _of_draft(config: WorkerConfig, n_ctx_slot: int) -> WorkerConfig:
    """Return the configuration of a worker that would run the draft model alone."""
    n_threads = config.n_threads_draft if config.n_threads_draft > 0 else config.n_threads
    n_batch = config.n_threads_batch_draft if config.n_threads_batch_draft > 0 else n_threads
    return replace(
        config,
        model=config.model_draft,
        n_ctx=config.n_ctx_draft or n_ctx_slot * config.n_slots,
        n_gpu_layers=config.n_gpu_layers_draft,
        n_threads=n_threads,
        n_threads_batch=n_batch,
        cache_type_k=config.cache_type_k_draft,
        cache_type_v=config.cache_type_v_draft,
        spec_type=("none",),
        device=config.device_draft or config.device,
        override_tensor=config.override_tensor_draft,
        cpu_moe=config.cpu_moe_draft,
        n_cpu_moe=config.n_cpu_moe_draft,
        n_cpu_ffn=0,
        cpus_batch=config.cpus_batch_draft or config.cpus_draft or config.cpus_batch,
        cpus=config.cpus_draft or config.cpus,
        prio=config.prio_draft,
        prio_batch=config.prio_batch_draft,
        poll=config.poll_draft if config.poll_draft >= 0 else config.poll,
        poll_batch=config.poll_batch_draft if config.poll_batch_draft >= 0 else config.poll_batch,
        cpu_strict=_or_default(config.cpu_strict_draft, config.cpu_strict),
        cpu_strict_batch=_or_default(config.cpu_strict_batch_draft, config.cpu_strict_batch),
        numa="",
        rpc=(),
        override_kv=(),
        lora=(),
        control_vector=(),
    )


def _or_default(value: bool | None, default: bool | None) -> Any:
    return default if value is None else value


def _mismatch(target: LlamaVocabulary, draft: LlamaVocabulary) -> str:
    """Return why two vocabularies do not match, by llama.cpp's rules; "" if they do."""
    kinds = [lib.llama_vocab_type(vocab.handle) for vocab in (target, draft)]
    if kinds[0] != kinds[1]:
        return f"its vocabulary is of type {kinds[1]}, the model's of {kinds[0]}"
    if (target.bos(), target.eos()) != (draft.bos(), draft.eos()):
        return "its BOS and EOS are not the model's"
    sizes = target.n_tokens, draft.n_tokens
    if abs(sizes[0] - sizes[1]) > MAX_VOCAB_DIFFERENCE:
        return f"its vocabulary has {sizes[1]} tokens, the model's {sizes[0]}"
    for token in range(FIRST_COMPARED, min(sizes)):
        texts = [lib.llama_vocab_get_text(vocab.handle, token) for vocab in (target, draft)]
        if texts[0] != texts[1]:
            return f"its token {token} is another than the model's"
    return ""


def _unfit(loaded: LoadedModel) -> str:
    if not can_generate(loaded.model, loaded.context):
        return "it generates no text token by token"
    reason = "a recurrent model cannot drop the tokens of a rejected draft"
    return reason if is_recurrent(loaded.model) else ""
