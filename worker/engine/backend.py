"""The seam between the engine and whatever computes: llama.cpp, or the deterministic fake.

The engine speaks in sequences, positions and tokens; a backend owns the memory behind them. All
methods belong to the engine thread, except `tokenize`, which only reads the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from protocol.facts import ModelCard, TokenProb
from protocol.sampling import SamplingParams


class Row(NamedTuple):
    """Consecutive tokens of one sequence in a batch, from position `pos` on."""

    seq: int
    pos: int
    tokens: Sequence[int]
    wants_logits: bool
    """The last token's logits are needed: it will be sampled from."""


class Sampled(NamedTuple):
    """One chosen token; `prob` only where the parameters ask for probabilities."""

    token: int
    prob: TokenProb | None = None


class Sampler(Protocol):
    """The sampler state of one task."""

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """The biases of the request as they are applied: tokens with what is added to them."""

    def close(self) -> None:
        """Free it; the task is over."""


class CacheFull(Exception):
    """No cells left for this batch; nothing was changed, so it may be tried again smaller."""


class DecodeFailed(Exception):
    """The batch was not computed. `fatal` says that the backend cannot be trusted any more."""

    def __init__(self, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.fatal = fatal


class DeadEnd(Exception):
    """The grammar and the biases leave no token to choose: the text ends here."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the engine needs to know of tokens, as tables indexed by token id."""

    pieces: Sequence[bytes]
    """Text of each token; control tokens are empty, for they are not shown."""
    special_pieces: Sequence[bytes]
    """The same with control tokens written out."""
    is_eog: Sequence[bool]
    add_bos: bool

    def render(self, tokens: Sequence[int]) -> str:
        """Write tokens as text, control tokens included."""
        return b"".join([self.special_pieces[token] for token in tokens]).decode(errors="replace")


class Backend(Protocol):
    """What the engine needs from the side that computes."""

    card: ModelCard
    vocabulary: Vocabulary
    n_batch: int
    """Most tokens of one `decode`."""
    is_gpu: bool
    prefill_token_s: float
    """First guess at the time to read one prompt token, from the warm-up; 0 if unknown."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Turn text into tokens. The one method that any thread may call."""

    def open_sampler(self, params: SamplingParams, prompt: Sequence[int]) -> Sampler:
        """Build the sampler of a task; raises `TaskError` for what the client got wrong."""

    def decode(self, rows: Sequence[Row]) -> None:
        """Compute one batch; raises `CacheFull` or `DecodeFailed`."""

    def sample(self, row: int, sampler: Sampler) -> Sampled:
        """Choose a token from the logits of the n-th row of the last batch; may raise `DeadEnd`."""

    def remove(self, seq: int, start: int) -> bool:
        """Forget a sequence from `start` on; False if only the whole of it could be forgotten."""

    def shift(self, seq: int, start: int, end: int) -> None:
        """Forget positions `start` to `end` and move the later ones down."""

    @property
    def can_shift(self) -> bool:
        """Whether `shift` is possible with this model and cache."""

    def close(self) -> None:
        """Free everything, in the order that the library needs."""
