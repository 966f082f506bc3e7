"""Collects the tokens of an answer that is not streamed, to send them a few times a second."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.wire.facts import TokenProb
from protocol.wire.messages import Delta

MOST = 256
"""Number of tokens that are sent at once, so that a long answer is not one large frame."""
LONGEST_S = 0.25
"""Seconds after which they are sent: if the worker is lost, no more is computed again."""


@dataclass(slots=True)
class ResponseBuffer:
    """Output of one task that the engine has not sent yet."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProb] = field(default_factory=list)

    since_s: float = 0.0
    """When the oldest of them was generated."""

    def add(
        self, text: str, tokens: Sequence[int], probs: Sequence[TokenProb], now_s: float
    ) -> None:
        """Add what a step generated."""
        if not self.tokens:
            self.since_s = now_s
        self.texts.append(text)
        self.tokens += tokens
        self.probs += probs

    def is_due(self, now_s: float) -> bool:
        """Return whether the tokens should be sent now."""
        return now_s - self.since_s >= LONGEST_S or len(self.tokens) >= MOST

    def take(self, n_predicted: int, state: tuple[float, ...] = ()) -> Delta | None:
        """Return the buffered tokens as one delta and empty the buffer; None if it is empty."""
        if not self.tokens and not any(self.texts):
            return None
        delta = Delta(
            text="".join(self.texts),
            tokens=tuple(self.tokens),
            sampler_state=state,
            probs=tuple(self.probs),
            n_predicted=n_predicted,
        )
        self.texts, self.tokens, self.probs = [], [], []
        return delta
