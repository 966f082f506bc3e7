"""The real backend: llama.cpp behind the engine's seam."""

import ctypes
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from protocol.config import WorkerConfig
from protocol.facts import ModelCard
from protocol.sampling import SamplingParams
from worker.engine.backend import CacheFull, DecodeFailed, Row, Sampled, Sampler
from worker.llama import library
from worker.llama.batch import Batch
from worker.llama.chain import Model
from worker.llama.model import Progress, load
from worker.llama.sampler import LlamaSampler, Logits, Scratch, open_sampler
from worker.llama.stages import Candidates
from worker.llama.vocabulary import LlamaVocabulary

logger = logging.getLogger(__name__)

_NO_CELLS, _INVALID = 1, -1
_WARMUP_TOKENS = 32


class LlamaBackend:
    """Owns one loaded model; implements `worker.engine.backend.Backend`."""

    def __init__(self, config: WorkerConfig, on_progress: Progress) -> None:
        self._config = config
        self._loaded = load(config, on_progress)
        self._context = self._loaded.context
        self._memory = lib.llama_get_memory(self._context)
        self._vocab = LlamaVocabulary(lib.llama_model_get_vocab(self._loaded.model))
        self.vocabulary = self._vocab.tables()
        self.n_batch = int(lib.llama_n_batch(self._context))
        self.is_gpu = self._loaded.is_gpu
        self.prefill_token_s = 0.0
        self._batch = Batch(self.n_batch)
        eog = [token for token, is_eog in enumerate(self.vocabulary.is_eog) if is_eog]
        self._model = Model(self._vocab, eog, self._loaded.n_ctx_slot)
        candidates = Candidates(self._vocab.n_tokens)
        self._scratch = Scratch(candidates, self.vocabulary.special_pieces)
        self.card = self._describe()
        if config.warmup:
            self._warm_up()

    # ---- Backend ------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Turn text into tokens; any thread may call it."""
        return self._vocab.tokenize(text, add_special=add_special, parse_special=parse_special)

    def open_sampler(self, params: SamplingParams, prompt: Sequence[int]) -> Sampler:
        """Build the sampler of a task."""
        return open_sampler(params, self._model, self._scratch, prompt)

    def decode(self, rows: Sequence[Row]) -> None:
        """Compute one batch."""
        self._batch.fill(rows)
        code = int(lib.llama_decode(self._context, self._batch.raw))
        if code == 0:
            return
        if code == _NO_CELLS:
            raise CacheFull
        reason = library.last_words()
        raise DecodeFailed(f"llama_decode returned {code}: {reason}", fatal=code < _INVALID)

    def sample(self, row: int, sampler: Sampler) -> Sampled:
        """Choose a token from a row's logits."""
        assert isinstance(sampler, LlamaSampler)
        index = self._batch.last[row]
        return sampler.sample(self._context, index, self._logits(index))

    def remove(self, seq: int, start: int) -> bool:
        """Forget a sequence from `start` on."""
        return bool(lib.llama_memory_seq_rm(self._memory, seq, start, -1))

    def shift(self, seq: int, start: int, end: int) -> None:
        """Forget `start` to `end`, and move the rest down at the next decode."""
        lib.llama_memory_seq_rm(self._memory, seq, start, end)
        lib.llama_memory_seq_add(self._memory, seq, end, -1, start - end)

    @property
    def can_shift(self) -> bool:
        """Whether positions can be moved in this kind of cache."""
        return bool(lib.llama_memory_can_shift(self._memory))

    def close(self) -> None:
        """Free everything."""
        self._loaded.close()

    # -------------------------------------------------------------------------------------------

    def _logits(self, index: int) -> Logits:
        """Look at a row of logits in place: valid until the next decode."""
        pointer = lib.llama_get_logits_ith(self._context, index)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        assert address is not None, f"row {index} has no logits"
        raw = (ctypes.c_float * self._vocab.n_tokens).from_address(address)
        return np.frombuffer(memoryview(raw), np.float32)

    def _warm_up(self) -> None:
        """Touch weights and graph once, and learn what a prompt token costs."""
        token = max(0, self._vocab.bos(), self._vocab.eos())
        for n in (1, _WARMUP_TOKENS):
            start = time.perf_counter()
            self.decode([Row(0, 0, [token] * n, True)])
            lib.llama_synchronize(self._context)
            self.prefill_token_s = (time.perf_counter() - start) / n
            lib.llama_memory_clear(self._memory, True)

    def _describe(self) -> ModelCard:
        model, vocab, config = self._loaded.model, self._vocab, self._config
        ftype = lib.llama_ftype_name(lib.llama_model_ftype(model))
        template = config.chat_template or _text(lib.llama_model_chat_template(model, None))
        return ModelCard(
            name=config.alias or Path(config.model).stem,
            path=config.model,
            n_slots=config.n_slots,
            n_prefetch=config.n_prefetch,
            n_ctx=self._loaded.n_ctx_slot,
            n_ctx_total=int(lib.llama_n_ctx(self._context)),
            n_ctx_train=int(lib.llama_model_n_ctx_train(model)),
            n_vocab=vocab.n_tokens,
            vocab_type=int(lib.llama_vocab_type(vocab.handle)),
            n_embd=int(lib.llama_model_n_embd(model)),
            n_params=int(lib.llama_model_n_params(model)),
            size=int(lib.llama_model_size(model)),
            ftype=_text(ftype),
            description=_description(model),
            chat_template=template,
            bos_token=vocab.token_text(vocab.bos()),
            eos_token=vocab.token_text(vocab.eos()),
            build=library.build(),
            defaults=config.sampling,
        )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if value else ""


def _description(model: Any) -> str:
    buffer = ctypes.create_string_buffer(256)
    lib.llama_model_desc(model, buffer, len(buffer))
    return buffer.value.decode(errors="replace")
