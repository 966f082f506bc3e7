"""Tokens that nobody waits for yet: an answer in one piece leaves in one piece."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.wire.facts import TokenProb
from protocol.wire.messages import Delta

MOST = 256
"""Tokens after which what is held leaves, so that a long answer does not become one large frame."""


@dataclass(slots=True)
class ResponseBuffer:
    """What one task has generated and not told."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProb] = field(default_factory=list)

    def add(self, text: str, tokens: Sequence[int], probs: Sequence[TokenProb]) -> None:
        """Hold what a step gave."""
        self.texts.append(text)
        self.tokens += tokens
        self.probs += probs

    @property
    def is_full(self) -> bool:
        """It is time to let go of it."""
        return len(self.tokens) >= MOST

    def take(self, n_predicted: int) -> Delta | None:
        """Let go of all as one delta; None if nothing is held."""
        if not self.tokens and not any(self.texts):
            return None
        delta = Delta(
            text="".join(self.texts),
            tokens=tuple(self.tokens),
            probs=tuple(self.probs),
            n_predicted=n_predicted,
        )
        self.texts, self.tokens, self.probs = [], [], []
        return delta
