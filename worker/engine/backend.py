"""The seam between the engine and whatever computes: llama.cpp, or the deterministic fake.

The engine speaks in sequences, positions and tokens; a backend owns the memory behind them. All
methods belong to the engine thread, except those that only read the vocabulary and say so.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from protocol.wire.facts import ModelCard, TokenProb
from protocol.wire.sampling import SamplingParams
from worker.engine.adapters import Adapters
from worker.engine.media import Media, MediaPiece
from worker.engine.sequence_state import SequenceState


class BatchRow(NamedTuple):
    """Consecutive tokens of one sequence in a batch, from position `pos` on."""

    seq: int
    pos: int
    tokens: Sequence[int]
    wants_logits: bool
    """The last token's logits are needed, because the next token is sampled from them."""
    is_draft: bool = False
    """The tokens after the first are a draft: each token's logits are needed to verify the next."""
    is_probed: bool = False
    """The logits of each token are needed, for the probability of the next prompt token."""

    def without_draft(self) -> "BatchRow":
        """Return the row without its draft."""
        return self._replace(tokens=self.tokens[:1], is_draft=False) if self.is_draft else self


class Regroup(NamedTuple):
    """One rearrangement of the positions of a sequence (self-extend)."""

    start: int
    end: int
    """Positions from `start` to `end` move up by `up` first."""
    up: int
    width: int
    n: int
    """The first `width` of them are divided by `n`."""
    down: int
    """The rest follows, by this (negative) distance."""

    @property
    def n_saved(self) -> int:
        """Positions that become free."""
        return self.width // self.n * (self.n - 1)


class Sampled(NamedTuple):
    """One chosen token; `prob` only where the parameters ask for probabilities."""

    token: int
    prob: TokenProb | None = None


class Sampler(Protocol):
    """The sampler state of one task."""

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """Tokens whose logits are changed, and by how much."""

    @property
    def backend_sampling(self) -> bool:
        """Whether tokens after the first are chosen on the device of the model."""

    @property
    def seed(self) -> int:
        """The seed that is used; a drawn one if the parameters have none."""

    @property
    def state(self) -> tuple[float, ...]:
        """State that does not follow from the tokens so far; usually empty."""

    def replay(self, tokens: Sequence[int], state: Sequence[float]) -> None:
        """Take over from a sampler of the same parameters that chose these tokens.

        `state` is the other one's. Raises `InvalidRequest` for an impossible state or token.
        """

    def end_reasoning(self) -> bool:
        """End the current reasoning now; return False if there is none."""

    def close(self) -> None:
        """Free it; the task is over."""


class CacheFull(Exception):
    """The batch found no cells. Nothing was changed, so a smaller one may be tried."""


class DecodeFailed(Exception):
    """The batch was not computed; if `fatal`, the backend is broken."""

    def __init__(self, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.fatal = fatal


class NoTokenAllowed(Exception):
    """The grammar and the biases leave no token to choose: the text ends here."""


class SpecialTokens(NamedTuple):
    """Special tokens; -1 where the vocabulary has none."""

    bos: int = -1
    eos: int = -1
    sep: int = -1
    adds_eos: bool = False
    """Whether EOS must follow each text."""
    adds_sep: bool = False
    fim_pre: int = -1
    fim_suf: int = -1
    fim_mid: int = -1
    fim_rep: int = -1
    fim_sep: int = -1

    def missing_for_infill(self) -> tuple[str, ...]:
        """Name the tokens that infill needs and that are not there."""
        needed = {"prefix": self.fim_pre, "suffix": self.fim_suf, "middle": self.fim_mid}
        return tuple(name for name, token in needed.items() if token < 0)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tables of tokens, indexed by token id."""

    pieces: Sequence[bytes]
    """Text of each token; control tokens are empty unless they are shown (`--special`)."""
    special_pieces: Sequence[bytes]
    """Text of each token, control tokens included."""
    is_eog: Sequence[bool]
    add_bos: bool
    special: SpecialTokens = SpecialTokens()
    adds_space: bool = False
    """The tokenizer adds a space before a text, which is not part of it."""

    def shown(self, token: int, control: Set[int], *, shows_end: bool) -> bytes:
        """Return the text of a token in an answer; `control` tokens are shown as they are.

        Those that end a text are shown only where all control tokens are, and if `shows_end`.
        """
        if self.is_eog[token]:
            return self.pieces[token] if shows_end else b""
        return self.special_pieces[token] if token in control else self.pieces[token]

    def render(self, tokens: Sequence[int]) -> str:
        """Write tokens as text, control tokens included."""
        return b"".join([self.special_pieces[token] for token in tokens]).decode(errors="replace")


class EmbeddingPiece(NamedTuple):
    """Tokens of one input of an embedding; most inputs are one piece."""

    seq: int
    pos: int
    tokens: Sequence[int]
    is_last: bool
    """The last piece of an input, after which its vectors are wanted."""
    normalize: int = -1


class Embedder(Protocol):
    """Turns token sequences into vectors, in a memory of its own."""

    pooling: str
    """`none`, `mean`, `cls`, `last` or `rank`."""
    n_batch: int
    """Maximum number of tokens of one `embed`, and of an input that cannot be split."""
    n_ctx: int
    """Maximum number of tokens of an input in any case."""
    n_seq: int
    """Maximum number of inputs of one `embed`; they are numbered from 0."""
    can_split: bool
    """An input may come in several pieces."""
    adapters: Adapters
    """The model's, for the batches of this memory."""
    rank_template: str
    """The model's text around `{query}` and `{document}`; empty if it has none."""

    def embed(self, pieces: Sequence[EmbeddingPiece]) -> list[bytes]:
        """Return for each last piece its vectors as float32; raises `DecodeFailed`.

        One vector an input, or one a token with pooling `none`; empty bytes if there is something
        among them that is not a number. What has been answered, or has failed, is forgotten.
        """

    reads_media: bool
    """Whether inputs may hold images or sounds."""

    def embed_media(self, seq: int, tokens: Sequence[int], media: Media, normalize: int) -> bytes:
        """Compute one input with media in it, and forget it; answers as `embed` does."""

    def forget(self, seq: int) -> None:
        """Drop the pieces of a cancelled input."""


class Encoder(Protocol):
    """Encodes images and sounds beside the engine's thread, one at a time."""

    @property
    def started_s(self) -> float:
        """When it began the one that it works on (monotonic); 0 if there is none."""

    def is_ready(self, piece: MediaPiece) -> bool:
        """Return whether `decode_media` finds the piece encoded, or raises why it is not."""

    def begin(self, piece: MediaPiece) -> None:
        """Begin to encode a piece, unless another one is at work."""


class Backend(Protocol):
    """What the engine needs from llama.cpp or the fake."""

    card: ModelCard
    vocabulary: Vocabulary
    n_batch: int
    """Maximum number of tokens of one `decode`."""
    n_seq: int
    """Maximum number of sequences, numbered from 0; the first ones belong to the slots."""
    n_outputs: int
    """Maximum number of tokens of one `decode` with logits; at least one a sequence."""
    is_gpu: bool
    prefill_token_s: float
    """Time to read one prompt token in the warm-up, in seconds; 0 if unknown."""

    @property
    def encoder(self) -> Encoder | None:
        """None where images and sounds need none."""

    @property
    def embedder(self) -> Embedder | None:
        """None where embeddings are not configured."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Turn text into tokens. Any thread may call it."""

    def open_sampler(
        self, params: SamplingParams, prompt: Sequence[int], triggers: Sequence[str] = ()
    ) -> Sampler:
        """Build the sampler of a task; raises `TaskError` for invalid parameters.

        It tokenizes texts, reads grammars and looks at the end of the prompt. Any thread may call
        it; the threads that read prompts do, to spare the engine's thread (`EngineTask.sampler`).
        With triggers the grammar applies only from the first of these texts on.
        """

    def set_sampler(self, seq: int, sampler: Sampler) -> None:
        """Bind a sampler to the sequence whose tokens it will choose after the first."""

    def decode(self, rows: Sequence[BatchRow]) -> None:
        """Compute one batch; raises `CacheFull` or `DecodeFailed`."""

    def is_broken(self, row: int, *, on_device: bool) -> bool:
        """Whether the logits of the n-th row of the last batch are all NaN.

        `on_device`: its token was chosen on the device.
        """

    def clear(self) -> None:
        """Remove all sequences and overwrite what they held with zeros."""

    def sample(self, row: int, sampler: Sampler, offset: int = -1) -> Sampled:
        """Choose a token by the logits of a row of the last batch; or raise `NoTokenAllowed`.

        `offset` names the token in the row; only a draft has logits of others than the last.
        """

    def sample_ahead(self, rows: Sequence[tuple[int, Sampler]]) -> None:
        """Choose the tokens of several rows of the last batch at once, if that is faster.

        `sample` then returns them. Only for rows whose last token alone is sampled from.
        """

    def probe(self, row: int, offset: int, token: int, n: int) -> TokenProb:
        """Return the probability of a token after one of a probed row, and the `n` likeliest."""

    def read_media(self, text: str, media: Sequence[bytes]) -> tuple[list[int], Media]:
        """Tokenize a text with markers for media, BOS included. Any thread may call it."""

    def open_pieces(self, saved: Sequence[bytes]) -> Sequence[MediaPiece]:
        """Read the pieces of a prompt as they were `saved`; raises `ValueError`. Any thread."""

    def decode_media(self, seq: int, pos: int, piece: MediaPiece, rows: range) -> None:
        """Put rows of an image or a sound into a sequence, where those before them are.

        `pos` is the position at which the piece begins; at most `n_batch` rows, or all of them. It
        is encoded first if it is not yet, which may take long. Raises `CacheFull`, `DecodeFailed`.
        """

    def remove(self, seq: int, start: int) -> None:
        """Remove a sequence's cells from `start` on.

        Where checkpoints are needed, only all of them, or those of the last `decode`.
        """

    def shift(self, seq: int, start: int, end: int) -> None:
        """Remove positions `start` to `end` and move the later ones down."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` hold the cells `start` to `end` of `source` too; only if `can_copy`.

        Where caches are not shared, `target` becomes a copy of what `source` has before `end`, or
        of all of it if checkpoints are needed.
        """

    def regroup(self, seq: int, move: Regroup) -> None:
        """Let tokens share positions; only if `can_group`."""

    @property
    def is_unified(self) -> bool:
        """Whether all sequences share one cache; otherwise each has its own, a slot's context."""

    @property
    def can_group(self) -> bool:
        """Whether positions can be shared: plain attention over the whole context only."""

    @property
    def can_copy(self) -> bool:
        """Whether a part of a sequence can be shared with another."""

    @property
    def can_batch(self) -> bool:
        """Whether a batch may have rows of several sequences."""

    @property
    def can_rewind(self) -> bool:
        """Whether the tokens of the last `decode` can be removed: not with recurrent memory."""

    @property
    def adapters(self) -> Adapters:
        """The LoRA adapters."""

    @property
    def states(self) -> SequenceState:
        """Copies of sequences."""

    @property
    def can_shift(self) -> bool:
        """Whether `shift` is possible with this model and cache."""

    def close(self) -> None:
        """Free everything, in the order that the library needs."""
