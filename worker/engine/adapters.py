"""LoRA adapters as the engine sees them: scales, and whose turn it is. Pure.

llama.cpp applies one set of adapters to a whole batch. So a batch takes tasks of one set only, and
a slot's cache is good for the set that it was read with. Sets take turns: the one that waited
longest comes next, so that none starves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from protocol.errors import InvalidRequest

Scales = tuple[float, ...]
"""One number for each loaded adapter; 0 is off."""


class Adapter(NamedTuple):
    """One loaded adapter; its id is its place in the list."""

    path: str
    scale: float
    """What it starts with."""
    task_name: str = ""
    prompt_prefix: str = ""


class Adapters(Protocol):
    """The backend's adapters."""

    loaded: Sequence[Adapter]

    def use(self, scales: Scales) -> None:
        """Apply these scales to the batches that follow."""


class NoAdapters:
    """What a backend has that has loaded none."""

    loaded: Sequence[Adapter] = ()

    def use(self, scales: Scales) -> None:
        """Nothing to apply."""


def check_scales(asked: Iterable[tuple[int, float]], n_loaded: int) -> None:
    """Raise `InvalidRequest` for an adapter that is not loaded."""
    for number, _ in asked:
        if not 0 <= number < n_loaded:
            have = f"0 to {n_loaded - 1} are" if n_loaded else "none is"
            raise InvalidRequest(
                f"Field 'lora': no adapter has the id {number}; {have} loaded", param="lora"
            )


def choose_scales(asked: Sequence[tuple[int, float]] | None, standing: Scales) -> Scales:
    """Return the scales of a task: what it asks for, the unnamed at 0; or else the standing ones.

    An empty list asks for nothing, as in llama-server.
    """
    if not asked:
        return standing
    named = dict(asked)
    return tuple(named.get(number, 0.0) for number in range(len(standing)))


@dataclass(slots=True)
class Turns:
    """Remembers when each waiting set had its last batch, or appeared."""

    _served: dict[Scales, int] = field(default_factory=dict)
    _number: int = 0

    def choose(self, wanted: Iterable[tuple[Scales, int]]) -> Scales:
        """Pick the set of the next batch, given set and admission number of each busy slot."""
        oldest: dict[Scales, int] = {}
        for scales, order in wanted:
            oldest[scales] = min(order, oldest.get(scales, order))
        # A set that appears stands behind those that wait already.
        self._served = {scales: self._served.get(scales, self._number) for scales in oldest}
        chosen = min(oldest, key=lambda scales: (self._served[scales], oldest[scales]))
        self._number += 1
        self._served[chosen] = self._number
        return chosen
