"""Whether a worker maps its model's file or reads it into memory of its own, and why: pure.

Mapped pages are there once for all who map them, so workers of one model share them. A worker that
is alone with its model gains nothing by that, and computes faster from memory of its own: 3 % more
tokens a second on 2 cores (SmolLM2-135M Q4_1, one stream).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.config.config import WorkerConfig

_SHARE = 0.5
"""Most of the free memory that weights are read into; caches and everybody else need some too."""


@dataclass(frozen=True, slots=True)
class WeightLoading:
    """How the weights of one worker come into memory."""

    reads: bool
    """Into memory of its own, instead of mapping the file."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the choice depends on beside the configuration."""

    sizes: Mapping[str, int]
    """Bytes of each file of weights; what is not here is unknown."""
    free: int
    """Bytes of memory that can be had; 0 is unknown."""


def loadings(
    workers: Sequence[WorkerConfig], room: Room, against: Sequence[str]
) -> tuple[WeightLoading, ...]:
    """Choose for workers that run at once; `against` says of each why its place needs mapping."""
    n_users = Counter(path for worker in workers for path in files(worker))
    settled = [
        _settled(worker, why_not) or _kept(worker, n_users, room)
        for worker, why_not in zip(workers, against, strict=True)
    ]
    free = [worker for worker, one in zip(workers, settled, strict=True) if one is None]
    total = sum(room.sizes[path] for worker in free for path in files(worker))
    fits = total <= room.free * _SHARE
    rest = (
        WeightLoading(True, "read, for no other worker shares them")
        if fits
        else WeightLoading(False, "mapped, for they are more than half of the free memory")
    )
    return tuple(one or rest for one in settled)


def maps(worker: WorkerConfig) -> bool:
    """Tell whether llama.cpp will map the file; unless anything was said, it does."""
    if worker.load_mode:
        return worker.load_mode == "auto" or "mmap" in worker.load_mode
    return worker.use_mmap is not False


def files(worker: WorkerConfig) -> frozenset[str]:
    """Return the files of weights that a worker loads in one way: its model's, and the draft's."""
    return frozenset({worker.model, worker.model_draft} - {""})


def _settled(worker: WorkerConfig, why_not: str) -> WeightLoading | None:
    """Return how it is by the worker's settings and its place."""
    if worker.use_mmap is not None or worker.load_mode or worker.use_mlock:
        return WeightLoading(not maps(worker), "as given")
    if worker.backend != "llama":
        return WeightLoading(False, "none")
    return WeightLoading(False, f"mapped, {why_not}") if why_not else None


def _kept(worker: WorkerConfig, n_users: Counter[str], room: Room) -> WeightLoading | None:
    """Say why the file stays mapped, if that is known without the other workers' sizes."""
    paths = files(worker)
    if any(n_users[path] > 1 for path in paths):
        return WeightLoading(False, "mapped, for workers share them")
    if not paths or not all(room.sizes.get(path) for path in paths):
        return WeightLoading(False, "mapped, for their size is not known yet")
    if not room.free:
        return WeightLoading(False, "mapped, for nobody says how much memory is free")
    return None
