"""The likeliest token, where a chain would do no more than add biases and find the greatest logit.

llama.cpp's chain copies the logits into candidates first: 60 us for 49,152 tokens, where numpy
finds the greatest in 8.
"""

from collections.abc import Mapping, Sequence

import numpy as np

Logits = np.ndarray[tuple[int], np.dtype[np.float32]]


class GreedySampler:
    """Finds the token with the greatest biased logit; the first of several, as llama.cpp does."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._tokens = frozenset(biases)
        self._ids = np.array(sorted(biases), np.intp)
        self._added = np.array([biases[token] for token in sorted(biases)], np.float32)
        self._raises = any(bias > 0 for bias in biases.values())

    def choose(self, logits: Logits) -> int:
        """Return the token; the logits are left as they are."""
        token = int(logits.argmax())
        if token not in self._tokens and not self._raises:
            return token  # what a bias has lowered was not greater before
        others = logits
        if token in self._tokens:
            others = logits.copy()
            others[self._ids] = -np.inf
            token = int(others.argmax())
        biased = logits[self._ids] + self._added
        i = int(biased.argmax())
        own = int(self._ids[i])
        return own if (-biased[i], own) < (-others[token], token) else token


def summed(biases: Sequence[tuple[int, float]]) -> dict[int, float] | None:
    """Return the biases by token; None if one has several, whose sum depends on the order."""
    found = dict(biases)
    return found if len(found) == len(biases) else None
