"""Decides whether a worker maps its model's file or reads it into private memory.

Mapped pages are shared by all workers of a model. A worker that is the only one of its model gains
nothing from mapping, and computes faster from private memory: 3 % more tokens a second on 2 cores
(SmolLM2-135M Q4_1, one stream).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.config.config import WorkerConfig

_SHARE = 0.5
"""Largest share of free memory for private weights; caches and other programs need the rest."""


@dataclass(frozen=True, slots=True)
class WeightLoading:
    """How the weights of one worker are loaded."""

    reads: bool
    """Whether they are read into private memory instead of mapping the file."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom:
    """Sizes of files and memory, for the choice."""

    sizes: Mapping[str, int]
    """Bytes of each file of weights; missing ones are unknown."""
    free: int
    """Available memory in bytes; 0 if unknown."""


def loadings(
    workers: Sequence[WorkerConfig], room: MemoryRoom, against: Sequence[str]
) -> tuple[WeightLoading, ...]:
    """Choose for workers that run at once; `against` are reasons to map, or empty."""
    n_users = Counter(path for worker in workers for path in files(worker))
    settled = [
        _settled(worker, why_not) or _kept(worker, n_users, room)
        for worker, why_not in zip(workers, against, strict=True)
    ]
    free = [worker for worker, choice in zip(workers, settled, strict=True) if choice is None]
    total = sum(room.sizes[path] for worker in free for path in files(worker))
    fits = total <= room.free * _SHARE
    rest = (
        WeightLoading(True, "read, because no other worker shares them")
        if fits
        else WeightLoading(False, "mapped, because they are more than half of the free memory")
    )
    return tuple(choice or rest for choice in settled)


def maps(worker: WorkerConfig) -> bool:
    """Return whether llama.cpp will map the file, which is its default."""
    if worker.load_mode:
        return worker.load_mode == "auto" or "mmap" in worker.load_mode
    return worker.use_mmap is not False


def files(worker: WorkerConfig) -> frozenset[str]:
    """Return the files of weights of a worker: its model's and its draft model's."""
    return frozenset({worker.model, worker.model_draft} - {""})


def _settled(worker: WorkerConfig, why_not: str) -> WeightLoading | None:
    """Return the choice that the settings or `why_not` require; None if it is open."""
    if worker.use_mmap is not None or worker.load_mode or worker.use_mlock:
        return WeightLoading(not maps(worker), "as given")
    if worker.backend != "llama":
        return WeightLoading(False, "none")
    return WeightLoading(False, f"mapped, because {why_not}") if why_not else None


def _kept(worker: WorkerConfig, n_users: Counter[str], room: MemoryRoom) -> WeightLoading | None:
    """Return the choice to map, if sharing or unknown sizes require it; None if it is open."""
    paths = files(worker)
    if any(n_users[path] > 1 for path in paths):
        return WeightLoading(False, "mapped, because several workers share them")
    if not paths or not all(room.sizes.get(path) for path in paths):
        return WeightLoading(False, "mapped, because their size is not known yet")
    if not room.free:
        return WeightLoading(False, "mapped, because the free memory is unknown")
    return None
