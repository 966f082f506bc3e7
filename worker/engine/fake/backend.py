"""A deterministic backend without a model: the same seam, no weights, faults on demand.

Tokens are bytes. The text that follows a prompt is a pure function of the sequence's tokens, so
that mixed-up streams would show. It checks what llama.cpp checks (positions must follow each other,
rows need room) and fails in the same ways. Markers in a prompt ask for faults: `[[eos N]]` ends the
text after N tokens, `[[say TEXT]]` repeats TEXT, `[[die]]` kills the process at the first token,
`[[hang]]` never returns from decode, `[[fail]]` lets decode fail, and `[[nan]]` makes all logits
NaN.
"""

import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Sequence

from protocol.config.config import WorkerConfig
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard, TokenProb
from protocol.wire.sampling import SamplingParams
from worker.engine.backend import (
    BatchRow,
    CacheFull,
    DecodeFailed,
    Encoder,
    Regroup,
    Sampled,
    Sampler,
    SpecialTokens,
    Vocabulary,
)
from worker.engine.cache.sequences import n_sequences
from worker.engine.fake.embedding import FakeEmbedder
from worker.engine.fake.faults import ProcessFaults
from worker.engine.fake.record import ComputeRecord
from worker.engine.fake.sampler import N_BYTES, FakeSampler
from worker.engine.fake.states import Cell, FakeAdapters, FakeStates, index_of
from worker.engine.media import Media, MediaPiece, count_positions

FAKE_MARKER = "<__media__>"
FAKE_DRAFT = 8
"""Drafted tokens of a slot whose logits fit into a batch."""
EOS, BOS = 256, 257
_SPECIAL = SpecialTokens(bos=BOS, eos=EOS, fim_pre=1, fim_suf=2, fim_mid=3, fim_rep=4, fim_sep=5)
_MARK = re.compile(rb"\[\[(eos|say|die|hang|fail|nan)(?: ([^\]]*))?\]\]")
_LETTERS = b"etaoinshrdlucmfwypvbgkqjxz"


def _vocabulary() -> Vocabulary:
    """Every byte is a token."""
    pieces = [bytes([byte]) for byte in range(N_BYTES)]
    return Vocabulary(
        [*pieces, b"", b""],
        [*pieces, b"<eos>", b"<bos>"],
        [False] * N_BYTES + [True, False],
        add_bos=True,
        special=_SPECIAL,
    )


class FakeBackend:
    """Implements `worker.engine.backend.Backend` over plain lists."""

    can_batch = can_copy = can_group = can_rewind = can_shift = True
    """Plain lists can be cut, shared and shifted, and have no positions that could conflict."""

    def __init__(self, config: WorkerConfig) -> None:
        total = config.n_ctx or 4096
        n_ctx = total if config.kv_unified else total // config.n_slots
        self._config = config
        self._step_s = config.fake_step_ms / 1e3
        self._token_s = config.fake_token_ms / 1e3
        self._cells: dict[int, list[int]] = {}
        self._faults: dict[int, tuple[bytes, bytes]] = {}
        self._generated_from: dict[int, int] = {}
        """Where the last marker of a sequence ends: what follows it was generated."""
        self.encoder: Encoder | None = None
        self._process_faults = ProcessFaults(config.name)
        self._process_faults.inject_at_load()
        self._record = ComputeRecord()
        self._samplers: dict[int, FakeSampler] = {}
        self._n_saved: dict[int, int] = {}
        self._last: list[BatchRow] = []
        self._is_spoiled = False
        self.n_cells = total
        self.n_batch = min(config.n_batch, total)
        self.n_seq = n_sequences(config.n_slots, config.cache_branches)
        self.n_outputs = config.n_slots * (1 + FAKE_DRAFT)
        self.is_gpu = False
        self.is_unified = True
        self.prefill_token_s = 0.0
        self.adapters = FakeAdapters(config.lora, scale=not config.lora_init_without_apply)
        self.states = FakeStates(
            self._cells,
            lambda: self.n_cells - self.n_used,
            self._note_mark,
            config.model,
            config.mmproj,
        )
        self.vocabulary = _vocabulary()
        has_embeddings = config.embeddings or config.reranking
        self.embedder = FakeEmbedder(config, n_ctx, self._record) if has_embeddings else None
        self.card = self._describe(n_ctx)
        time.sleep(config.fake_load_ms / 1e3)

    def _describe(self, n_ctx: int) -> ModelCard:
        config, special = self._config, self.vocabulary.special_pieces
        return ModelCard(
            name=config.alias or "fake",
            aliases=config.aliases,
            tags=config.tags,
            path=config.model or "fake.gguf",
            n_slots=config.n_slots,
            n_prefetch=config.n_prefetch,
            n_ctx=n_ctx,
            n_ctx_total=self.n_cells,
            n_ctx_train=self.n_cells,
            n_vocab=len(special),
            longest_piece=max(map(len, special)),
            chat_template=config.chat_template,
            reasoning_format=config.reasoning_format,
            template_kwargs=config.chat_variables,
            jinja=config.jinja,
            parses_chats=not config.skip_chat_parsing,
            prefill_assistant=config.prefill_assistant,
            media_marker=FAKE_MARKER if config.mmproj else "",
            has_vision=bool(config.mmproj),
            bos_token=special[BOS].decode(),
            eos_token=special[EOS].decode(),
            build="b0-fake",
            device="fake",
            defaults=config.sampling,
            saves_slots=bool(config.slot_save_path),
            n_lora=len(config.lora),
            has_embeddings=self.embedder is not None,
            pooling=self.embedder.pooling if self.embedder else "",
            n_embd_out=self.embedder.n_embd if self.embedder else 0,
            embd_normalize=config.embd_normalize,
            suffix_first=config.spm_infill,
        )

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Turn text into its bytes, BOS first if wanted."""
        return [BOS] * add_special + list(text.encode(errors="replace"))

    def open_sampler(
        self, params: SamplingParams, prompt: Sequence[int], triggers: Sequence[str] = ()
    ) -> Sampler:
        """Make a sampler that remembers only its parameters."""
        return FakeSampler(params)

    def set_sampler(self, seq: int, sampler: Sampler) -> None:
        """Pretend that the device can choose the tokens of tasks without a grammar."""
        assert isinstance(sampler, FakeSampler)
        sampler.seq = seq
        self._samplers[seq] = sampler
        sampler.backend_sampling = sampler.params.backend_sampling and not sampler.params.grammar

    def decode(self, rows: Sequence[BatchRow]) -> None:
        """Append rows to their sequences, as strict about positions as llama.cpp."""
        self._process_faults.inject()
        n_tokens = sum(len(row.tokens) for row in rows)
        assert 0 < n_tokens <= self.n_batch, f"batch of {n_tokens} tokens"
        if not self._fits(rows, n_tokens):
            raise CacheFull
        for row in rows:
            cells = self._cells.setdefault(row.seq, [])
            pos = count_positions(cells) - self._n_saved.get(row.seq, 0)
            assert row.pos == pos, f"seq {row.seq} continues at {row.pos}, not {pos}"
            if self.states.needs_checkpoints:
                assert self.states.ends.get(row.seq, 0) == len(cells), f"seq {row.seq} was cut"
        for row in rows:
            self._cells[row.seq] += map(Cell, row.tokens)
            self.states.ends[row.seq] = len(self._cells[row.seq])
            self._find_fault(row)
            self._is_spoiled |= self._faults.get(row.seq, (b"",))[0] == b"nan"
        if step_s := self._step_s + n_tokens * self._token_s:
            time.sleep(step_s)
        n_outputs = sum(len(row.tokens) if row.is_probed else row.wants_logits for row in rows)
        assert n_outputs <= self.n_outputs, f"{n_outputs} rows of logits"
        self._last = list(rows)
        self._record.add(sum(len(row.tokens) for row in rows if self._is_prompt(row)), 0)

    def _fits(self, rows: Sequence[BatchRow], n_tokens: int) -> bool:
        if not self.is_unified:
            n_most = self.n_cells // self.n_seq
            return all(
                len(self._cells.get(row.seq, ())) + len(row.tokens) <= n_most for row in rows
            )
        n_at_most = sum(map(len, self._cells.values()))  # counting shared cells once takes long
        return n_at_most + n_tokens <= self.n_cells or self.n_used + n_tokens <= self.n_cells

    def _is_prompt(self, row: BatchRow) -> bool:
        sampler = self._samplers.get(row.seq)
        is_next = row.wants_logits and sampler is not None and sampler.has_pending
        return not (row.is_draft or is_next)

    @property
    def n_used(self) -> int:
        """Cells in use; a shared one counts once, as in llama.cpp's unified cache."""
        return len({id(cell) for cells in self._cells.values() for cell in cells})

    def is_broken(self, row: int, *, on_device: bool) -> bool:
        """Whether any prompt asked for it since the cache was emptied, as NaN spreads."""
        return self._is_spoiled

    def clear(self) -> None:
        """Forget all sequences."""
        for seq in list(self._cells):
            self.remove(seq, 0)
        self._is_spoiled = False

    def sample_ahead(self, rows: Sequence[tuple[int, Sampler]]) -> None:
        """Do nothing: sampling ahead would not be faster."""

    def sample(self, row: int, sampler: Sampler, offset: int = -1) -> Sampled:
        """Choose the next byte from the sequence alone (and the seed, unless greedy)."""
        assert isinstance(sampler, FakeSampler)
        read = self._last[row]
        assert read.wants_logits, "this row has no logits"
        assert read.is_draft or offset == -1, "only a draft has logits of all its tokens"
        start = index_of(self._cells[read.seq], read.pos + self._n_saved.get(read.seq, 0))
        end = start + (len(read.tokens) if offset < 0 else offset + 1)
        token = self._next_token(read.seq, self._cells[read.seq][:end], sampler)
        sampler.learn(token)
        sampler.has_pending = True
        self._record.add(0, 1)
        prob = None
        if sampler.params.n_probs:
            piece = self.vocabulary.special_pieces[token]
            prob = TokenProb(id=token, piece=piece, p=-0.25, top=((token, piece, -0.25),))
        return Sampled(token, prob)

    def probe(self, row: int, offset: int, token: int, n: int) -> TokenProb:
        """Call every token equally likely."""
        read = self._last[row]
        assert read.is_probed and offset < len(read.tokens), "these logits were not asked for"
        piece = self.vocabulary.special_pieces[token]
        return TokenProb(id=token, piece=piece, p=-0.5, top=((token, piece, -0.5),))

    def read_media(self, text: str, media: Sequence[bytes]) -> tuple[list[int], Media]:
        """Let each marker stand for three positions and four rows."""
        parts = text.split(FAKE_MARKER)
        if len(parts) != len(media) + 1:
            raise InvalidRequest("the markers do not match the media", param="prompt")
        tokens = self.tokenize(parts[0], add_special=True, parse_special=True)
        pieces: dict[int, MediaPiece] = {}
        for data, part in zip(media, parts[1:], strict=True):
            pieces[len(tokens)] = MediaPiece(3, data.hex(), n_rows=4, saved=data)
            tokens += pieces[len(tokens)].placeholders
            tokens += self.tokenize(part, add_special=False, parse_special=True)
        return tokens, pieces

    def open_pieces(self, saved: Sequence[bytes]) -> Sequence[MediaPiece]:
        """Accept any bytes as a piece, unless they begin with a question mark."""
        if any(data.startswith(b"?") for data in saved):
            raise ValueError("no piece")
        return [MediaPiece(3, data.hex(), n_rows=4, saved=data) for data in saved]

    def decode_media(self, seq: int, pos: int, piece: MediaPiece, rows: range) -> None:
        """Append placeholders to a sequence."""
        cells = self._cells.setdefault(seq, [])
        n_before = count_positions(cells) - min(rows.start, piece.n_pos)
        assert pos == n_before, f"seq {seq} continues at {n_before}"
        if self.n_used + len(rows) > self.n_cells:
            raise CacheFull
        cells += map(Cell, piece.placeholders[rows.start : rows.stop])
        self.states.ends[seq] = len(cells)
        self._record.add(len(rows), 0)

    def remove(self, seq: int, start: int) -> None:
        """Forget a sequence from `start` on."""
        if self.states.needs_checkpoints:
            assert not start or start >= self.states.first_cut(seq)
        ends, start = self.states.ends, index_of(self._cells.get(seq, []), start)
        ends[seq] = min(start, ends.get(seq, 0))
        del self._cells.setdefault(seq, [])[start:]
        self._faults.pop(seq, None)
        if start == 0:
            self.states.first_cuts.pop(seq, None)
            self._n_saved.pop(seq, None)
        else:
            self._note_mark(seq)

    def shift(self, seq: int, start: int, end: int) -> None:
        """Forget `start` to `end`; the rest moves down."""
        del self._cells[seq][start:end]
        self._note_mark(seq)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Copy a part; positions must follow each other as everywhere."""
        cells = self._cells.setdefault(target, [])
        held = self._cells[source]
        assert start == count_positions(cells) and end <= count_positions(held)
        if self.is_unified:
            cells += held[index_of(held, start) : index_of(held, end)]
        elif self.states.needs_checkpoints:
            cells[:] = map(Cell, held)
        else:
            cells[:] = map(Cell, held[: index_of(held, end)])
        first = self.states.first_cut(source)
        self.states.ends[target] = self.states.ends.get(source, 0)
        self.states.first_cuts[target] = end if self.is_unified else first
        self._note_mark(target)

    def regroup(self, seq: int, move: Regroup) -> None:
        """Count the positions that are shared."""
        used = len(self._cells[seq]) - self._n_saved.get(seq, 0)
        assert move.start + move.width <= move.end == used
        self._n_saved[seq] = self._n_saved.get(seq, 0) + move.n_saved

    def close(self) -> None:
        """Forget everything."""
        self._cells.clear()

    def _find_fault(self, row: BatchRow) -> None:
        """Obey the last marker of a prompt once it has been read."""
        marked = len(row.tokens) > 1 and not row.is_draft and self._note_mark(row.seq)
        if not marked:
            return
        kind, _ = self._faults[row.seq]
        if kind == b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == b"hang":
            threading.Event().wait()
        if kind == b"fail":
            raise DecodeFailed("the fake was asked to fail", fatal=False)

    def _note_mark(self, seq: int) -> bool:
        """Remember the last marker of a sequence; return whether there is one."""
        cells = self._cells[seq]
        marks = []
        if ord("[") in cells:  # most texts have no marker
            data = bytes(token if 0 <= token < N_BYTES else 0 for token in cells)
            marks = list(_MARK.finditer(data))
        self._generated_from[seq] = marks[-1].end() if marks else 0
        if marks:
            self._faults[seq] = marks[-1].group(1), marks[-1].group(2) or b""
        return bool(marks)

    def _next_token(self, seq: int, cells: Sequence[int], sampler: FakeSampler) -> int:
        params = sampler.params
        kind, argument = self._faults.get(seq, (b"", b""))
        n_generated = len(cells) - self._generated_from[seq] if kind else 0
        if kind == b"eos" and n_generated >= int(argument or 0) and not params.ignore_eos:
            return EOS
        if kind == b"say":
            return argument[n_generated] if n_generated < len(argument) else EOS
        state = bytes(token % N_BYTES for token in cells[-16:])
        if params.temperature > 0:
            state += params.seed.to_bytes(4, "little")
        state += self.adapters.flavour
        if sampler.state:
            state += repr(sampler.state).encode()
        value = zlib.crc32(state)
        return ord(" ") if value % 6 == 0 else _LETTERS[value // 6 % len(_LETTERS)]
