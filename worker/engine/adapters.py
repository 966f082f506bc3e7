"""LoRA adapters: their scales, and which set of them the next batch runs with. Pure.

llama.cpp applies one set of adapters to a whole batch. So a batch holds tasks of one set only, and
a slot's cache serves only the set that it was read with. The set that waited longest comes next,
first of the tenant whose tasks did.
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
    """Scale at the start of the worker."""
    task_name: str = ""
    prompt_prefix: str = ""


class Adapters(Protocol):
    """The backend's adapters."""

    loaded: Sequence[Adapter]

    def use(self, scales: Scales) -> None:
        """Apply these scales to the batches that follow."""


class NoAdapters:
    """Adapters of a backend that has loaded none."""

    loaded: Sequence[Adapter] = ()

    def use(self, scales: Scales) -> None:
        """Do nothing."""


def check_scales(asked: Iterable[tuple[int, float]], n_loaded: int) -> None:
    """Raise `InvalidRequest` for an adapter that is not loaded."""
    for number, _ in asked:
        if not 0 <= number < n_loaded:
            have = f"0 to {n_loaded - 1} are" if n_loaded else "none is"
            raise InvalidRequest(
                f"Field 'lora': no adapter has the id {number}; {have} loaded", param="lora"
            )


def choose_scales(asked: Sequence[tuple[int, float]] | None, standing: Scales) -> Scales:
    """Return the scales that a task asks for, 0 for adapters it does not name.

    Without a list, or with an empty one as in llama-server, it gets the standing scales.
    """
    if not asked:
        return standing
    named = dict(asked)
    return tuple(named.get(number, 0.0) for number in range(len(standing)))


class AdapterTask(NamedTuple):
    """What a busy slot wants."""

    scales: Scales
    order: int
    """Admission number: lower is older."""
    tenant: str = ""


@dataclass(slots=True)
class AdapterRotation:
    """Gives each tenant, and of a tenant each set of adapters, a batch in turn.

    So a tenant with many sets has no more batches than one with a single set, as long as no set
    waits for more than twice as many batches as there are sets: those come first.
    """

    _served: dict[Scales, int] = field(default_factory=dict)
    """Set -> number of its last batch, or of the batch before it appeared."""
    _tenants: dict[str, int] = field(default_factory=dict)
    """The same of each tenant's last batch."""
    _n_batches: int = 0

    def choose(self, waiting: Sequence[AdapterTask]) -> Scales:
        """Pick the set of the next batch."""
        # What is new comes after those that wait already.
        now, served, tenants = self._n_batches, self._served, self._tenants
        self._served = {task.scales: served.get(task.scales, now) for task in waiting}
        self._tenants = {task.tenant: tenants.get(task.tenant, now) for task in waiting}
        chosen = min(waiting, key=self._rank).scales
        self._n_batches += 1
        self._served[chosen] = self._n_batches
        for task in waiting:
            if task.scales == chosen:
                self._tenants[task.tenant] = self._n_batches
        return chosen

    def _rank(self, task: AdapterTask) -> tuple[int, int, int, int]:
        served = self._served[task.scales]
        due = self._n_batches - 2 * len(self._served)
        return min(served, due), self._tenants[task.tenant], served, task.order
