"""State of a sampler that does not follow from its tokens, as numbers that another worker can set.

In order: draws of `dist` beyond one a token; draws of XTC; three numbers of Mirostat or adaptive-p,
which replace `dist`; the numbers of tokens after which a client ended the reasoning. For most
samplers the state is empty, because it follows from the tokens.
"""

from collections.abc import Sequence

from protocol.errors import InvalidRequest
from worker.llama.sampling.chain import Chain
from worker.llama.sampling.stages import Stage
from worker.llama.sampling.stateful import AdaptiveP, Mirostat, Xtc

State = tuple[float, ...]

_N_FIELDS = 5


class HiddenState:
    """Reads and sets the state of the parts of one sampler."""

    def __init__(self, parts: Sequence[Chain | Stage], *, draws: bool) -> None:
        """`draws`: the last part ends in llama.cpp's `dist`."""
        last = parts[-1]
        self._dist = last if draws and isinstance(last, Chain) else None
        self._chooser = last if isinstance(last, (Mirostat, AdaptiveP)) else None
        self._xtc = next((part for part in parts if isinstance(part, Xtc)), None)
        self._n_extra = 0

    def refused(self) -> None:
        """Note that a grammar refused a choice, so that another one follows."""
        self._n_extra += self._dist is not None

    def current(self, ended_at: Sequence[int]) -> State:
        """Return the state now."""
        if not (self._n_extra or self._xtc or self._chooser or ended_at):
            return ()
        n_xtc = self._xtc.n if self._xtc is not None else 0
        own = self._chooser.state if self._chooser is not None else (0.0, 0.0, 0.0)
        return (float(self._n_extra), float(n_xtc), *own, *map(float, ended_at))

    def restore(self, n_tokens: int, state: Sequence[float]) -> None:
        """Set the state that it had after `n` tokens; must come before the first choice."""
        n_extra, n_xtc, n_draws, *sums = state[:_N_FIELDS] or (0.0,) * _N_FIELDS
        self._n_extra = int(n_extra)
        if self._dist is not None:
            self._dist.skip(n_tokens + self._n_extra)
        if self._xtc is not None:
            self._xtc.skip(int(n_xtc))
        if self._chooser is not None and state:
            self._chooser.restore(int(n_draws), *sums)


def ended_at(state: Sequence[float], n_tokens: int) -> frozenset[int]:
    """Return after which tokens the reasoning was ended; raises for an impossible state."""
    counts = (*state[:3], *state[_N_FIELDS:])
    is_possible = all(0 <= n <= 2 * n_tokens and n.is_integer() for n in counts)
    if not is_possible or 0 < len(state) < _N_FIELDS:
        raise InvalidRequest("no sampler has such a state", param="partial_answer.sampler_state")
    return frozenset(map(int, state[_N_FIELDS:]))
