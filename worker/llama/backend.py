"""The real backend: llama.cpp behind the engine's `Backend` protocol."""

import ctypes
import time
from collections.abc import Sequence

import llama_cpp.llama_cpp as lib
import numpy as np

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError, ErrorCode, TaskError
from protocol.wire.facts import ModelCard, TokenProb
from protocol.wire.sampling import SamplingParams
from worker.engine.adapters import Adapters
from worker.engine.backend import BatchRow, CacheFull, DecodeFailed, Regroup, Sampled, Sampler
from worker.engine.media import Media, MediaPiece
from worker.llama import library
from worker.llama.batch import Batch
from worker.llama.embedding.context import open_embedder
from worker.llama.hardware.threads import prioritize
from worker.llama.media.pieces import open_saved
from worker.llama.media.reader import NO_MEDIA, MediaReader
from worker.llama.model import (
    Progress,
    can_batch,
    can_copy,
    has_position_table,
    is_recurrent,
    load,
    spare_sequence,
)
from worker.llama.model_card import describe, with_embeddings, with_media
from worker.llama.sampling.chain import SamplerModel
from worker.llama.sampling.device_sampling import are_candidates_nan, open_device_sampling
from worker.llama.sampling.grammar import Grammars
from worker.llama.sampling.greedy import Logits
from worker.llama.sampling.probabilities import raw_prob
from worker.llama.sampling.sampler import LlamaSampler, Outputs, Scratch, open_sampler
from worker.llama.sampling.sampler_threads import SampleJob, open_sampler_threads
from worker.llama.sampling.stages import Candidates
from worker.llama.state import LlamaStates
from worker.llama.streams import INVALID, NO_CELLS, open_streams
from worker.llama.vocabulary import LlamaVocabulary

_WARMUP_TOKENS = 32
"""Tokens of the second batch of the warm-up on a CPU. It gives a first estimate of a prompt token's
time, which steps correct, and must not delay the start on a slow CPU."""


class LlamaBackend:
    """Owns one loaded model; implements `worker.engine.backend.Backend`."""

    def __init__(self, config: WorkerConfig, on_progress: Progress) -> None:
        self._config = config
        prioritize(config.prio)  # applies to this thread and to those that it starts
        self._loaded = load(config, on_progress)
        self._context = self._loaded.context
        self._memory = lib.llama_get_memory(self._context)
        self._vocab = LlamaVocabulary(lib.llama_model_get_vocab(self._loaded.model))
        self.vocabulary = self._vocab.tables(shows_special=config.special)
        self.n_batch = int(lib.llama_n_batch(self._context))
        spare = spare_sequence(self._context, config)
        self.n_seq = spare or int(lib.llama_n_seq_max(self._context))
        self.n_outputs = self._loaded.n_outputs
        self.is_gpu = self._loaded.is_gpu
        self.prefill_token_s = 0.0
        self.adapters: Adapters = self._loaded.adapters
        self._batch = Batch(self.n_batch)
        self._streams = open_streams(self._loaded, self._batch)
        self.states = LlamaStates(self._context, config, self._streams)
        self._outputs: Outputs | None = None
        """Logits of the last batch; None until they are read."""
        self._view: Outputs = np.empty((0, self._vocab.n_tokens), np.float32)
        """View of the same memory, which llama.cpp reuses for each batch."""
        self._view_address = 0
        eog = [token for token, is_eog in enumerate(self.vocabulary.is_eog) if is_eog]
        self._model = SamplerModel(self._vocab, eog, self._loaded.n_ctx_slot)
        self._device_sampling = open_device_sampling(self._context, self._vocab, config)
        # On a CPU they gained less than 5 % in every measurement: the model uses all cores.
        n_samplers = config.n_threads if self.is_gpu else 1
        self._sampler_threads = open_sampler_threads(self._context, n_samplers)
        self._media = self._open_media(config)
        self.encoder = None if self._media is None else self._media.encoder
        self.embedder = open_embedder(self._loaded, config, self._media)
        pieces, special = self.vocabulary.pieces, self.vocabulary.special_pieces
        candidates = Candidates(self._vocab.n_tokens)
        self._scratch = Scratch(candidates, special, pieces, Grammars(self._vocab, special, eog))
        self.card = self._describe()
        if self.card.can_generate:
            self._try_defaults(config.sampling)
            if config.warmup:
                self._warm_up()

    # ---- Backend ------------------------------------------------------------------------------

    @property
    def is_unified(self) -> bool:
        """Whether all sequences share one cache."""
        return self._streams is None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Turn text into tokens; any thread may call it."""
        return self._vocab.tokenize(text, add_special=add_special, parse_special=parse_special)

    def open_sampler(
        self, params: SamplingParams, prompt: Sequence[int], triggers: Sequence[str] = ()
    ) -> Sampler:
        """Build the sampler of a task; any thread may call it."""
        return open_sampler(params, self._model, self._scratch, prompt, triggers)

    def set_sampler(self, seq: int, sampler: Sampler) -> None:
        """Let the device sample a task's later tokens, if possible."""
        assert isinstance(sampler, LlamaSampler)
        sampler.backend_sampling = self._device_sampling.offer(seq, sampler, sampler.params)

    def decode(self, rows: Sequence[BatchRow]) -> None:
        """Compute one batch."""
        self._device_sampling.before(rows)
        self._outputs = None
        if self._streams is None:
            self._batch.fill(rows)
            code = int(lib.llama_decode(self._context, self._batch.raw))
        else:
            code = self._streams.decode(rows)
        if code == 0:
            if any(row.wants_logits for row in rows):
                # A GPU still computes. Its logits are read next, and the time counts as decoding.
                lib.llama_synchronize(self._context)
            self._device_sampling.after(rows)
            return
        if code == NO_CELLS:
            raise CacheFull
        reason = library.last_warnings()
        raise DecodeFailed(f"llama_decode returned {code}: {reason}", fatal=code < INVALID)

    def is_broken(self, row: int, *, on_device: bool) -> bool:
        """Whether a row's logits are all NaN; nearly always the first tells."""
        index = self._batch.last[row]
        if on_device:
            return are_candidates_nan(self._context, index)
        logits = self._logits(index)
        return bool(logits[0] != logits[0] and np.isnan(logits).all())

    def clear(self) -> None:
        """Remove all sequences; zeros remain, for attention multiplies free cells by zero too."""
        lib.llama_memory_clear(self._memory, True)

    def sample(self, row: int, sampler: Sampler, offset: int = -1) -> Sampled:
        """Choose a token from a row's logits."""
        assert isinstance(sampler, LlamaSampler)
        index = self._batch.last[row] if offset < 0 else self._batch.first[row] + offset
        if sampler.busy_chain is None or sampler.chosen >= 0:
            return sampler.sample(self._context, index, self._logits)
        start = time.perf_counter()
        sampled = sampler.sample(self._context, index, self._logits)
        self._sampler_threads.learn(time.perf_counter() - start)
        return sampled

    def sample_ahead(self, rows: Sequence[tuple[int, Sampler]]) -> None:
        """Sample several rows at once, if that is faster than one by one."""
        if not self._sampler_threads.is_faster(len(rows)):
            return
        busy = [
            (row, each) for row, each in rows if isinstance(each, LlamaSampler) and each.busy_chain
        ]
        if not self._sampler_threads.is_faster(len(busy)):
            return
        lib.llama_get_logits(self._context)  # puts them in order, which threads must not do
        jobs = [SampleJob(each.busy_chain, self._batch.last[row]) for row, each in busy]
        for (_, sampler), token in zip(busy, self._sampler_threads.choose(jobs), strict=True):
            sampler.chosen = token

    def probe(self, row: int, offset: int, token: int, n: int) -> TokenProb:
        """Return the log-probability of a token after a position of a row."""
        logits = self._logits(self._batch.first[row] + offset)
        return raw_prob(token, logits, n, self.vocabulary.special_pieces)

    def read_media(self, text: str, media: Sequence[bytes]) -> tuple[list[int], Media]:
        """Tokenize a text with markers for images and sounds."""
        if self._media is None:
            raise TaskError(ErrorCode.NOT_SUPPORTED, NO_MEDIA)
        return self._media.read(text, media)

    def open_pieces(self, saved: Sequence[bytes]) -> Sequence[MediaPiece]:
        """Read pieces as slots save them."""
        return open_saved(saved)

    def decode_media(self, seq: int, pos: int, piece: MediaPiece, rows: range) -> None:
        """Decode rows of an image or a sound into a sequence."""
        assert self._media is not None
        self._outputs = None
        self._media.decode(piece, rows, self._context, seq, pos)

    def remove(self, seq: int, start: int) -> None:
        """Remove a sequence's cells from `start` on."""
        lib.llama_memory_seq_rm(self._memory, seq, start, -1)

    def shift(self, seq: int, start: int, end: int) -> None:
        """Remove the cells `start` to `end`; the rest moves down at the next decode."""
        lib.llama_memory_seq_rm(self._memory, seq, start, end)
        lib.llama_memory_seq_add(self._memory, seq, end, -1, start - end)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Share cells: in a unified cache a cell belongs to any number of sequences."""
        if self._streams is None:
            lib.llama_memory_seq_cp(self._memory, source, target, start, end)
        else:
            self._streams.copy(source, target, -1 if self.states.needs_checkpoints else end)

    def regroup(self, seq: int, move: Regroup) -> None:
        """Self-extend: move all positions up, divide a window's, and move the rest down."""
        start, end = move.start + move.up, move.end + move.up
        behind = start + move.width
        lib.llama_memory_seq_add(self._memory, seq, move.start, move.end, move.up)
        lib.llama_memory_seq_div(self._memory, seq, start, behind, move.n)
        lib.llama_memory_seq_add(self._memory, seq, behind, end, move.down)

    @property
    def can_group(self) -> bool:
        """Whether self-extend works; not with a sliding window, which selects cells by position.

        Nor with a table of positions, which the cells' keys are made with.
        """
        has_window = lib.llama_model_n_swa(self._loaded.model) > 0
        if has_window or has_position_table(self._config):
            return False
        return self.can_shift and self.can_rewind

    @property
    def can_copy(self) -> bool:
        """Whether cells can be shared."""
        return can_copy(self._loaded.model)

    @property
    def can_batch(self) -> bool:
        """Whether a batch may have rows of several sequences."""
        return can_batch(self._loaded.model)

    @property
    def can_rewind(self) -> bool:
        """Whether the tokens of the last batch can be removed; not in recurrent memory.

        A window has lost what they pushed out if they were computed in parts.
        """
        in_one_part = self.n_outputs <= int(lib.llama_n_ubatch(self._context))
        can_cut = in_one_part or not self.states.needs_checkpoints
        return can_cut and not is_recurrent(self._loaded.model)

    @property
    def can_shift(self) -> bool:
        """Whether positions can be moved in this kind of cache.

        Where recurrent layers stand beside windows (LFM2), all attention has windows, and llama.cpp
        aborts when it moves the cells of the cache for whole contexts, which has no layers.
        """
        model = self._loaded.model
        has_empty_cache = is_recurrent(model) and lib.llama_model_n_swa(model) > 0
        return bool(lib.llama_memory_can_shift(self._memory)) and not has_empty_cache

    @property
    def tokens(self) -> LlamaVocabulary:
        """The vocabulary, to compare it with that of a draft model."""
        return self._vocab

    def close(self) -> None:
        """Free everything."""
        self._sampler_threads.close()
        self._device_sampling.close()
        if self._media is not None:
            self._media.close()
        if self.embedder is not None:
            self.embedder.close()
        self._loaded.close()

    # -------------------------------------------------------------------------------------------

    def _open_media(self, config: WorkerConfig) -> MediaReader | None:
        if not config.mmproj:
            return None
        n_ubatch = int(lib.llama_n_ubatch(self._context))
        return MediaReader(config, self._loaded.model, n_ubatch)

    def _describe(self) -> ModelCard:
        card = describe(self._config, self._loaded, self._vocab, self.vocabulary)
        return with_embeddings(with_media(card, self._media), self.embedder)

    def _logits(self, index: int) -> Logits:
        """Return a view of a row of logits; valid until the next decode."""
        if self._outputs is None:
            self._outputs = self._read_outputs()
        row: Logits = self._outputs[self._batch.output(index)]
        return row

    def _read_outputs(self) -> Outputs:
        """Return a view of all logits of the last batch, in the order of its positions."""
        address = library.logits_address(self._context)
        assert address is not None, "the last batch has no logits"
        n_rows, n_tokens = self._batch.n_outputs, self._vocab.n_tokens
        if address != self._view_address or n_rows > len(self._view):
            raw = (ctypes.c_float * (n_rows * n_tokens)).from_address(address)
            self._view = np.frombuffer(memoryview(raw), np.float32).reshape(n_rows, n_tokens)
            self._view_address = address
        return self._view

    def _try_defaults(self, params: SamplingParams) -> None:
        """Raise `ConfigError` if the default grammar or logit biases are invalid."""
        try:
            self.open_sampler(params, []).close()
        except TaskError as error:
            raise ConfigError(f"the options of generation: {error.message}") from error

    def _warm_up(self) -> None:
        """Decode once, to load weights and graph, and measure the time of a prompt token.

        On a GPU the second batch is as large as any: the memory that it needs there is taken now,
        and kept. If it were taken with the first long prompt, another program might have it.
        """
        token = max(0, self._vocab.bos(), self._vocab.eos())
        n_ubatch = int(lib.llama_n_ubatch(self._context))
        largest = min(n_ubatch, self._loaded.n_ctx_slot) if self.is_gpu else 0
        for n in (1, min(self.n_batch, max(largest, _WARMUP_TOKENS))):
            start = time.perf_counter()
            self.decode([BatchRow(0, 0, [token] * n, True)])
            self.prefill_token_s = (time.perf_counter() - start) / n
            self.clear()
