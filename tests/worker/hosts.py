"""Made-up machines."""

from collections.abc import Mapping
from pathlib import Path

from worker.host.placement import Cpu, Host


def flat(n_cores: int, **fields: object) -> Host:
    """One node, no hyper-threads."""
    cpus = tuple(Cpu(number=i, core=i) for i in range(n_cores))
    return Host(cpus=cpus, **{"n_online": n_cores, **fields})  # type: ignore[arg-type]


def nodes(n_nodes: int, n_cores: int, *, threads: int = 1, **fields: object) -> Host:
    """Nodes of so many cores each; hyper-threads are numbered behind all cores, as Linux does."""
    n_all = n_nodes * n_cores
    cpus = tuple(
        Cpu(number=turn * n_all + core, core=core, node=core // n_cores)
        for turn in range(threads)
        for core in range(n_all)
    )
    return Host(cpus=cpus, **{"n_online": len(cpus), **fields})  # type: ignore[arg-type]


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write a tree of /sys and /proc files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
