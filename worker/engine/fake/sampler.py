"""The fake backend's samplers: they choose nothing, but tests see what they were asked for."""

import zlib
from collections.abc import Sequence

from protocol.wire.sampling import SamplingParams

N_BYTES = 256
"""Tokens that are bytes."""


class FakeSampler:
    """Counts what it was asked for; `open_count` shows leaks."""

    open_count = 0

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.seq = -1
        self.backend_sampling = False
        self.seed = params.seed
        self.state: tuple[float, ...] = ()
        self.was_ended = False
        self.has_pending = False
        """Whether a chosen token is not decoded yet; it does not count as a prompt token."""
        self.is_open = True
        FakeSampler.open_count += 1

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """Those that name a token."""
        return tuple((token, bias) for token, bias in self.params.logit_bias if type(token) is int)

    def replay(self, tokens: Sequence[int], state: Sequence[float]) -> None:
        """Remember the state; the text depends on it with mirostat, and on nothing else."""
        self.has_pending = bool(tokens)
        self.state = tuple(state)

    def learn(self, token: int) -> None:
        """Change the state in a way that the tokens do not show."""
        if self.params.mirostat:
            known = int(self.state[0]) if self.state else 0
            self.state = (float(zlib.crc32(bytes([known % 251, token % N_BYTES]))),)

    def end_reasoning(self) -> bool:
        """Remember the call; a text counts as reasoning if its task has `reasoning_control`."""
        self.was_ended = self.params.reasoning_control
        return self.was_ended

    def close(self) -> None:
        """Free it, once."""
        assert self.is_open
        self.is_open = False
        FakeSampler.open_count -= 1
