"""One request as its client saw it: when it began, when each piece came, how it ended."""

import dataclasses
import itertools
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.bench.client.dialects import AnswerPiece, Counts


class Role(StrEnum):
    """Purpose of a request."""

    WARMUP = "warmup"
    BACKGROUND = "background"
    LOAD = "load"


class Failure(StrEnum):
    """Why a request failed; the status of a refusal is kept beside it."""

    CONNECT = "connect"
    REFUSED = "http"
    TIMEOUT = "timeout"
    ERROR_EVENT = "error_event"
    BROKEN = "broken"
    CUT = "cut"
    """Cancelled by the load generator at the end of the load; not an error."""


@dataclass(slots=True, kw_only=True)
class Transcript:
    """Filled in while the answer comes. Times are of one monotonic clock."""

    role: Role = Role.LOAD
    conversation: int = 0
    turn: int = 0
    n_inputs: int = 1
    streamed: bool = True
    """Whether the answer came as events; the first token of a whole answer cannot be seen."""
    start_s: float = 0.0
    end_s: float = 0.0
    """When the last byte came, or when a failure was noticed."""
    arrivals_s: list[float] = field(default_factory=list)
    """Arrival of every piece with text."""
    pieces: list[str] = field(default_factory=list)
    counts: Counts = Counts()
    status: int = 0
    finish: str = ""
    failure: Failure | None = None
    message: str = ""

    def take(self, piece: AnswerPiece, now_s: float) -> None:
        """Add a piece."""
        if piece.text:
            self.arrivals_s.append(now_s)
            self.pieces.append(piece.text)
        if piece.finish:
            self.finish = piece.finish
        if piece.counts:
            known = {k: v for k, v in dataclasses.asdict(piece.counts).items() if v >= 0}
            self.counts = dataclasses.replace(self.counts, **known)
        if piece.error:
            self.fail(Failure.ERROR_EVENT, piece.error)

    def fail(self, failure: Failure, message: str = "") -> None:
        """Note why it failed; later reasons are ignored."""
        if self.failure is None:
            self.failure, self.message = failure, message

    @property
    def ok(self) -> bool:
        """Whether the answer is complete."""
        return self.failure is None

    @property
    def text(self) -> str:
        """Text of the answer."""
        return "".join(self.pieces)

    @property
    def n_output(self) -> int:
        """Tokens of the answer, by the server's count; without one, the number of pieces."""
        return self.counts.n_output if self.counts.n_output >= 0 else len(self.arrivals_s)

    @property
    def ttft_s(self) -> float:
        """Time to the first piece with text."""
        return self.arrivals_s[0] - self.start_s

    @property
    def e2e_s(self) -> float:
        """Time to the last piece with text, or to the end of an answer without."""
        return (self.arrivals_s[-1] if self.arrivals_s else self.end_s) - self.start_s

    @property
    def tpot_s(self) -> float:
        """Mean time of the tokens after the first; only with at least two."""
        return (self.e2e_s - self.ttft_s) / (self.n_output - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Time between the pieces."""
        return [b - a for a, b in itertools.pairwise(self.arrivals_s)]
