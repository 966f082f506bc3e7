"""A deterministic backend without a model: the same seam, no weights, faults on demand.

Tokens are bytes. The text that follows a prompt is a pure function of the sequence's tokens, so
that streams that were mixed up would show. It keeps the books that llama.cpp keeps (positions
must follow each other, rows need room) and fails in the same ways. Markers in a prompt ask for
faults: `[[eos N]]` ends the text after N tokens, `[[say TEXT]]` repeats TEXT, `[[die]]` kills the
process at the first token, `[[hang]]` never returns from decode, `[[fail]]` lets decode fail.
"""

import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Sequence

from protocol.config import WorkerConfig
from protocol.facts import ModelCard, TokenProb
from protocol.sampling import SamplingParams
from worker.engine.backend import CacheFull, DecodeFailed, Row, Sampled, Sampler, Vocabulary

N_BYTES = 256
EOS, BOS = 256, 257
_MARK = re.compile(rb"\[\[(eos|say|die|hang|fail)(?: ([^\]]*))?\]\]")
_LETTERS = b"etaoinshrdlucmfwypvbgkqjxz"


class FakeSampler:
    """Counts what it was asked for; `open_count` shows leaks."""

    open_count = 0

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.is_open = True
        FakeSampler.open_count += 1

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """Those that name a token."""
        return tuple((token, bias) for token, bias in self.params.logit_bias if type(token) is int)

    def close(self) -> None:
        """Free it, once."""
        assert self.is_open
        self.is_open = False
        FakeSampler.open_count -= 1


class FakeBackend:
    """Implements `worker.engine.backend.Backend` over plain lists."""

    def __init__(self, config: WorkerConfig) -> None:
        n_ctx = (config.n_ctx or 4096) // config.n_slots
        self._config = config
        self._step_s = config.fake_step_ms / 1e3
        self._cells: dict[int, list[int]] = {}
        self._faults: dict[int, tuple[bytes, bytes]] = {}
        self._last: list[int] = []
        self.n_cells = n_ctx * config.n_slots
        self.n_batch = config.n_batch
        self.is_gpu = False
        self.prefill_token_s = 0.0
        pieces = [bytes([byte]) for byte in range(N_BYTES)]
        special = [*pieces, b"<eos>", b"<bos>"]
        self.vocabulary = Vocabulary(
            [*pieces, b"", b""], special, [False] * N_BYTES + [True, False], add_bos=True
        )
        self.card = ModelCard(
            name=config.alias or "fake",
            path=config.model or "fake.gguf",
            n_slots=config.n_slots,
            n_prefetch=config.n_prefetch,
            n_ctx=n_ctx,
            n_ctx_total=n_ctx * config.n_slots,
            n_ctx_train=n_ctx * config.n_slots,
            n_vocab=len(special),
            chat_template=config.chat_template,
            bos_token=special[BOS].decode(),
            eos_token=special[EOS].decode(),
            build="b0-fake",
            defaults=config.sampling,
        )
        time.sleep(config.fake_load_ms / 1e3)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Turn text into its bytes, BOS first if wanted."""
        return [BOS] * add_special + list(text.encode(errors="replace"))

    def open_sampler(self, params: SamplingParams, prompt: Sequence[int]) -> Sampler:
        """Make a sampler that remembers only its parameters."""
        return FakeSampler(params)

    def decode(self, rows: Sequence[Row]) -> None:
        """Append rows to their sequences, as strict about positions as llama.cpp."""
        n_tokens = sum(len(row.tokens) for row in rows)
        assert 0 < n_tokens <= self.n_batch, f"batch of {n_tokens} tokens"
        used = sum(len(cells) for cells in self._cells.values())
        if used + n_tokens > self.n_cells:
            raise CacheFull
        for row in rows:
            cells = self._cells.setdefault(row.seq, [])
            assert row.pos == len(cells), f"seq {row.seq} continues at {row.pos}, not {len(cells)}"
        for row in rows:
            self._cells[row.seq] += row.tokens
            self._find_fault(row)
        if self._step_s:
            time.sleep(self._step_s)
        self._last = [row.seq if row.wants_logits else -1 for row in rows]

    def sample(self, row: int, sampler: Sampler) -> Sampled:
        """Choose the next byte from the sequence alone (and the seed, unless greedy)."""
        assert isinstance(sampler, FakeSampler)
        seq = self._last[row]
        assert seq >= 0, "this row has no logits"
        token = self._next_token(seq, sampler.params)
        prob = None
        if sampler.params.n_probs:
            piece = self.vocabulary.special_pieces[token]
            prob = TokenProb(id=token, piece=piece, p=-0.25, top=((token, piece, -0.25),))
        return Sampled(token, prob)

    def remove(self, seq: int, start: int) -> bool:
        """Forget a sequence from `start` on."""
        del self._cells.setdefault(seq, [])[start:]
        if start == 0:
            self._faults.pop(seq, None)
        return True

    def shift(self, seq: int, start: int, end: int) -> None:
        """Forget `start` to `end`; the rest moves down."""
        del self._cells[seq][start:end]

    @property
    def can_shift(self) -> bool:
        """Plain lists can always be shifted."""
        return True

    def close(self) -> None:
        """Forget everything."""
        self._cells.clear()

    def _find_fault(self, row: Row) -> None:
        """Obey the last marker of a prompt once it has been read."""
        cells = bytes(token for token in self._cells[row.seq] if token < N_BYTES)
        marks = list(_MARK.finditer(cells)) if len(row.tokens) > 1 else []
        if not marks:
            return
        kind, argument = marks[-1].group(1), marks[-1].group(2) or b""
        self._faults[row.seq] = kind, argument
        if kind == b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == b"hang":
            threading.Event().wait()
        if kind == b"fail":
            raise DecodeFailed("the fake was asked to fail", fatal=False)

    def _next_token(self, seq: int, params: SamplingParams) -> int:
        cells = self._cells[seq]
        kind, argument = self._faults.get(seq, (b"", b""))
        start = self._generated_from(cells)
        n_generated = len(cells) - start
        if kind == b"eos" and n_generated >= int(argument or 0) and not params.ignore_eos:
            return EOS
        if kind == b"say":
            return argument[n_generated] if n_generated < len(argument) else EOS
        state = bytes(token % N_BYTES for token in cells[-16:])
        if params.temperature > 0:
            state += params.seed.to_bytes(4, "little")
        value = zlib.crc32(state)
        return ord(" ") if value % 6 == 0 else _LETTERS[value // 6 % len(_LETTERS)]

    @staticmethod
    def _generated_from(cells: Sequence[int]) -> int:
        """Find where the prompt's last marker ends: what follows it was generated."""
        data = bytes(token if token < N_BYTES else 0 for token in cells)
        marks = list(_MARK.finditer(data))
        return marks[-1].end() if marks else 0
