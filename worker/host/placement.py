"""Decides which part of the host a worker gets: threads, CPUs, memory for its weights.

`Host` is the machine as `worker/host/topology.py` has read it. Explicit options take precedence;
the rest is chosen here. docs/notes/threads.md has the measurements behind the choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from protocol.config.config import WorkerConfig
from protocol.cpulist import ANYWHERE, format_cpus, parse_cpus
from worker.host.weights import MemoryRoom, loadings

NO_NUMA = "none"
CHOSEN_POLL = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """A logical CPU."""

    number: int
    core: int
    """Lowest CPU number of the same core; CPUs with equal values are hyper-threads."""
    node: int = 0
    is_efficient: bool = False
    """Whether it is a slow core of a hybrid machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The CPUs that this process may use."""

    cpus: tuple[Cpu, ...]
    n_online: int
    """Number of online CPUs of the machine."""
    quota: float = 0.0
    """CPU quota of the control group in cores; 0 means no limit."""
    free_memory: int = 0
    """Available bytes without swapping, within the control group; 0 if unknown."""
    has_gpu: bool = False
    name: str = ""
    """Host name; empty if unknown."""

    @property
    def n_cores(self) -> int:
        """Return how many threads can compute at once."""
        n_cores = count_cores(self.cpus)
        # Rounded down: with one thread too many, steps would wait for the next quota period.
        return max(1, min(n_cores, int(self.quota))) if self.quota else max(1, n_cores)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return the NUMA nodes of the usable CPUs."""
        return tuple(sorted({cpu.node for cpu in self.cpus}))

    def of_nodes(self, nodes: Sequence[int]) -> tuple[Cpu, ...]:
        """Return the usable CPUs of these nodes."""
        return tuple(cpu for cpu in self.cpus if cpu.node in nodes)

    def __str__(self) -> str:
        words = [f"{len(self.cpus)} of {self.n_online} CPUs", f"{count_cores(self.cpus)} cores"]
        if len(self.nodes) > 1:
            words.append(f"{len(self.nodes)} NUMA nodes")
        if self.quota:
            words.append(f"a quota of {self.quota:g} cores")
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Resources of one worker, and why."""

    n_threads: int
    n_threads_batch: int
    cpus: str
    """List of CPUs as in `0-3,8`, or `all`."""
    numa: str
    poll: int
    why: str
    reads: bool = False
    """Whether weights are read into private memory instead of mapping the file."""


@dataclass(frozen=True, slots=True)
class _Where:
    """The CPUs of one worker, before the number of its threads is chosen."""

    cpus: str
    numa: str
    n_cores: int
    """Number of cores for this worker alone."""
    why: str


def place(
    host: Host, workers: Sequence[WorkerConfig], sizes: Mapping[str, int]
) -> tuple[Placement, ...]:
    """Place workers that run at once on one host; `sizes` are the bytes of their models' files."""
    places = _places(host, workers)
    threads = [
        _threads(worker, where.n_cores) for worker, where in zip(workers, places, strict=True)
    ]
    n_all = sum(map(max, threads))
    found = [
        _placement(host, worker, where, n_threads, n_all)
        for worker, where, n_threads in zip(workers, places, threads, strict=True)
    ]
    against = [
        _reason_against_reading(host, config, where)
        for config, where in zip(workers, places, strict=True)
    ]
    ways = loadings(workers, MemoryRoom(sizes=sizes, free=host.free_memory), against)
    return tuple(
        replace(placed, reads=way.reads, why=f"{placed.why}; weights: {way.why}")
        for placed, way in zip(found, ways, strict=True)
    )


def _placement(
    host: Host, worker: WorkerConfig, where: _Where, threads: tuple[int, int], n_all: int
) -> Placement:
    poll, waits = _poll(worker, n_all, host.n_cores)
    given = "as given" if worker.n_threads > 0 else f"{where.n_cores} of {host.n_cores} cores"
    return Placement(
        n_threads=threads[0],
        n_threads_batch=threads[1],
        cpus=where.cpus,
        numa=where.numa,
        poll=poll,
        why=f"threads: {given}; CPUs: {where.why}; waiting: {waits}",
    )


def _threads(worker: WorkerConfig, share: int) -> tuple[int, int]:
    n_threads = worker.n_threads if worker.n_threads > 0 else share
    return n_threads, worker.n_threads_batch if worker.n_threads_batch > 0 else n_threads


def _poll(worker: WorkerConfig, n_all: int, n_cores: int) -> tuple[int, str]:
    if worker.poll >= 0:
        return worker.poll, "as given"
    if n_all > n_cores:
        return 0, f"sleeping, because {n_all} threads share {n_cores} cores"
    return CHOSEN_POLL, "spinning for microseconds, because every thread has a core"


def _reason_against_reading(host: Host, worker: WorkerConfig, where: _Where) -> str:
    """Return why private memory does not make this worker faster; empty if it does."""
    if uses_gpu(host, worker) or (worker.rpc and worker.n_gpu_layers):
        return "the CPU does not do the work"
    wanted = parse_cpus(where.cpus)
    if len({cpu.node for cpu in host.cpus if not wanted or cpu.number in wanted}) > 1:
        # Private memory would all be on the node of the reading thread.
        return "its threads are on several NUMA nodes"
    return ""


def grouped(names: Sequence[str], placements: Sequence[Placement]) -> dict[Placement, list[str]]:
    """Return the names of the workers that have the same placement, by placement."""
    same: dict[Placement, list[str]] = {}
    for name, placement in zip(names, placements, strict=True):
        same.setdefault(placement, []).append(name)
    return same


def describe(names: Sequence[str], placements: Sequence[Placement]) -> list[str]:
    """Write each placement as one line, with all workers that have it."""
    return [
        f"workers={','.join(group)} threads={placement.n_threads} "
        f"threads_batch={placement.n_threads_batch} "
        f"cpus={placement.cpus} numa={placement.numa} poll={placement.poll} "
        f"weights={'read' if placement.reads else 'mapped'} ({placement.why})"
        for placement, group in grouped(names, placements).items()
    ]


# ---- where ------------------------------------------------------------------------------------


def _places(host: Host, workers: Sequence[WorkerConfig]) -> list[_Where]:
    share = max(1, host.n_cores // max(1, len(workers)))
    free = [worker for worker in workers if not _configured(host, worker)]
    groups = iter(_dealt(host, free, len(workers)))
    return [_configured(host, worker, share) or next(groups) for worker in workers]


def _configured(host: Host, worker: WorkerConfig, share: int = 1) -> _Where | None:
    """Return the place that the settings give, or anywhere if all places are equal."""
    numa = worker.numa or NO_NUMA
    if worker.cpus:
        asked = parse_cpus(worker.cpus)
        ours = tuple(cpu for cpu in host.cpus if not asked or cpu.number in asked)
        n_cores = min(share, count_cores(ours)) if ours else share
        return _Where(worker.cpus, numa, n_cores, "as given")
    if worker.numa:
        why = "--numa as given" + (", which moves threads itself" if numa != NO_NUMA else "")
        return _Where(ANYWHERE, numa, share, why)
    if uses_gpu(host, worker):
        return _Where(ANYWHERE, NO_NUMA, share, "any, because a GPU computes")
    if len(host.nodes) < 2:
        return _Where(ANYWHERE, NO_NUMA, share, "any, because there is one NUMA node")
    return None


def uses_gpu(host: Host, worker: WorkerConfig) -> bool:
    """Return whether a worker will compute on a GPU, judged by its settings and the host."""
    return worker.n_gpu_layers != 0 and (bool(worker.devices) or host.has_gpu)


def _dealt(host: Host, workers: Sequence[WorkerConfig], n_workers: int) -> list[_Where]:
    """Distribute the NUMA nodes over the CPU workers without explicit placement."""
    if len(workers) < 2:
        return [_alone(host, worker, n_workers) for worker in workers]
    nodes, n = host.nodes, len(workers)
    groups: list[tuple[int, ...]]
    if n >= len(nodes):
        groups = [(nodes[i % len(nodes)],) for i in range(n)]
    else:
        cuts = [i * len(nodes) // n for i in range(n + 1)]
        groups = [nodes[low:high] for low, high in pairwise(cuts)]
    most = host.n_cores // n_workers
    return [_near(host, group, groups.count(group), most) for group in groups]


def _near(host: Host, nodes: tuple[int, ...], n_sharing: int, most: int) -> _Where:
    cpus = host.of_nodes(nodes)
    share = count_cores(cpus) // n_sharing
    n_cores = max(1, min(share, most) if host.quota else share)
    named = ", ".join(map(str, nodes))
    why = f"NUMA node {named}, so that its memory is near"
    return _Where(format_cpus(cpu.number for cpu in cpus), NO_NUMA, n_cores, why)


def _alone(host: Host, worker: WorkerConfig, n_workers: int) -> _Where:
    """Place the only worker on a machine of several nodes."""
    share = max(1, host.n_cores // n_workers)
    largest = max(host.nodes, key=lambda node: count_cores(host.of_nodes((node,))))
    if 0 < max(worker.n_threads, worker.n_threads_batch) <= count_cores(host.of_nodes((largest,))):
        return _near(host, (largest,), 1, share)
    if host.quota or len(host.cpus) < host.n_online:
        # llama.cpp's placement ignores quotas and masks: it would use every CPU of a node.
        return _Where(ANYWHERE, NO_NUMA, share, "anywhere in the CPUs granted, part of the machine")
    why = "one worker over all NUMA nodes, its threads spread evenly and kept there"
    return _Where(ANYWHERE, "distribute", share, why)


def count_cores(cpus: Sequence[Cpu]) -> int:
    """Count the cores of these CPUs; slow cores of a hybrid machine would delay the others."""
    fast = [cpu for cpu in cpus if not cpu.is_efficient] or cpus
    return len({cpu.core for cpu in fast})
