"""Reads the machine: usable CPUs, cores, NUMA nodes, quota, memory, GPUs.

Sources are /sys, /proc and the control group. If a file is missing, as in a sandbox, every CPU
counts as a core of its own on one node.
"""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from protocol.cpulist import ANYWHERE, format_cpus, parse_cpus
from protocol.errors import ConfigError
from worker.host.placement import Cpu, Host

logger = logging.getLogger(__name__)

_ROOT = Path("/")
_GPU_FILES = ("nvidia[0-9]*", "kfd")
_UNLIMITED = 1 << 62
"""Memory limits of cgroup version 1 from this value on mean no limit."""


def read_host(root: Path = _ROOT, allowed: frozenset[int] | None = None) -> Host:
    """Read the machine under `root`; `allowed` are the CPUs of this process, unless given."""
    numbers = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    online = _cpu_list(root / "sys/devices/system/cpu/online")
    node_of = _nodes(root)
    slow = _cpu_list(root / "sys/devices/cpu_atom/cpus")
    cpus = tuple(
        Cpu(
            number=number,
            core=_core(root, number),
            node=node_of.get(number, 0),
            is_efficient=number in slow,
        )
        for number in numbers
    )
    return Host(
        cpus=cpus,
        n_online=max(len(online), len(cpus)),
        quota=_quota(root),
        free_memory=usable_memory(root),
        has_gpu=bool(gpu_files(root)),
        name=_name(root),
    )


def gpu_files(root: Path = _ROOT) -> list[str]:
    """Return the device files of GPUs."""
    return sorted(str(path) for pattern in _GPU_FILES for path in (root / "dev").glob(pattern))


def _name(root: Path) -> str:
    """Read the host name, reduced to characters that a worker's name may have."""
    path = root / "proc/sys/kernel/hostname"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.read_text().strip()) if path.is_file() else ""


def bind(cpus: str) -> str:
    """Bind this process to those of these CPUs that are usable, as the kernel does.

    Returns the CPUs; `all`, with a warning, if none is usable: llama-server goes on, too.
    """
    wanted = parse_cpus(cpus) if cpus else frozenset()
    if not wanted:
        return cpus
    try:
        os.sched_setaffinity(0, wanted)
    except OSError:
        usable = format_cpus(os.sched_getaffinity(0))
        logger.warning(
            "no such CPUs",
            extra={
                "cpus": cpus,
                "cause": f"this process may use only {usable}",
                "action": "the worker uses all of these",
            },
        )
        return ANYWHERE
    return cpus


def _core(root: Path, number: int) -> int:
    folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
    siblings = _cpu_list(folder / "thread_siblings_list") or _cpu_list(folder / "core_cpus_list")
    return min(siblings, default=number)


def _nodes(root: Path) -> dict[int, int]:
    """Map each CPU to its NUMA node."""
    found = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        for number in _cpu_list(folder / "cpulist"):
            found[number] = int(folder.name.removeprefix("node"))
    return found


def _cpu_list(path: Path) -> frozenset[int]:
    text = text_of(path).strip()
    try:
        return parse_cpus(text) if text else frozenset()
    except ConfigError:
        return frozenset()


# ---- the control group ------------------------------------------------------------------------


def _quota(root: Path) -> float:
    """Return the smallest CPU quota of the control group and its parents, in cores."""
    quotas = [quota for folder in groups(root, "cpu") if (quota := _quota_of(folder)) > 0]
    return min(quotas, default=0.0)


def groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control group and its parents, for version 2 and 1."""
    for line in text_of(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        _, names, path = [*line.split(":", 2), "", ""][:3]
        mount = root / "sys/fs/cgroup"
        if names:
            if controller not in names.split(","):
                continue
            mount /= controller
        folder = mount / path.lstrip("/")
        # In a container the path may be the host's: missing folders are skipped.
        while mount in (folder, *folder.parents):
            yield folder
            folder = folder.parent


def _quota_of(folder: Path) -> float:
    words = text_of(folder / "cpu.max").split()
    if not words:
        words = [text_of(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) == 2 and all(re.fullmatch(r"\d+", word) for word in words) and int(words[1]):
        return int(words[0]) / int(words[1])
    return 0.0


# ---- memory -----------------------------------------------------------------------------------


def free_memory(root: Path = _ROOT) -> int:
    """Return the available memory in bytes, without swapping; 0 if unknown."""
    return _meminfo(root, "MemAvailable")


def quarter_of_memory(root: Path = _ROOT) -> int:
    """Return a quarter of the memory within the control groups' limits, used or not, in bytes.

    That much a worker may take for what is useful and not necessary. 0 if unknown.
    """
    found = (_limit(folder) for folder in groups(root, "memory"))
    return min([_meminfo(root, "MemTotal"), *(limit[0] for limit in found if limit)]) // 4


def _meminfo(root: Path, name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d+) kB", text_of(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def group_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes left below the control groups' limits; None means no limit."""
    left = [room for folder in groups(root, "memory") if (room := _room(folder)) is not None]
    return min(left, default=None)


def usable_memory(root: Path = _ROOT) -> int:
    """Return the bytes available within the control groups' limits; 0 if unknown."""
    allowed = group_memory(root)
    return free_memory(root) if allowed is None else min(free_memory(root), allowed)


def _room(folder: Path) -> int | None:
    limit = _limit(folder)
    if limit is None:
        return None
    most, used, cached = limit
    now = text_of(folder / used).strip()
    match = re.search(rf"^{cached} (\d+)", text_of(folder / "memory.stat"), re.MULTILINE)
    taken = int(now or 0) - (int(match[1]) if match else 0)
    return max(0, most - max(0, taken))


def _limit(folder: Path) -> tuple[int, str, str] | None:
    """Return the limit of one group, and where it says what is used and what it could drop."""
    for name, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        text = text_of(folder / name).strip()
        if text.isdecimal() and int(text) < _UNLIMITED:
            return int(text), used, cached
    return None


def text_of(path: Path) -> str:
    """Return the text of a file, or an empty one if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
