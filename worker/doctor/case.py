"""What is examined: a pool as `serve` would run it, and the host that it would run on."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.config import config as configs
from protocol.config.config import PoolConfig, WorkerConfig
from protocol.errors import ConfigError
from worker.doctor.child import ChildOutcome, run
from worker.host.placement import Host, describe
from worker.host.topology import read_host
from worker.settings import resolve
from worker.settings.download import located
from worker.supervisor import launch

_MADE_AT_START = "(made at the start)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asked of the examination."""

    loads: bool = True
    """Load the models."""
    limit_s: float = 300.0
    """Longest time of loading one."""
    is_gpu_wanted: bool = False
    """Somebody named layers or devices: that all layers go to a GPU is only the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pool on a host; where the configuration cannot work, as much of it as could be read."""

    pool: PoolConfig
    fault: str
    """What is wrong with the configuration."""
    placements: tuple[str, ...]
    host: Host
    environ: Mapping[str, str]
    folder: Path
    """For the configuration of a child."""
    asked: Asked

    @property
    def workers(self) -> tuple[WorkerConfig, ...]:
        """Return the workers that run llama.cpp."""
        return tuple(one for one in self.pool.worker if one.backend == "llama")

    def environment(self, worker: WorkerConfig | None = None) -> Mapping[str, str]:
        """Return what the process of a worker would have as its environment."""
        (one,) = launch.workers([worker or WorkerConfig()], self.folder, self.environ)
        return one.env

    def ask(
        self, *args: str, worker: WorkerConfig | None = None, limit_s: float = 30.0
    ) -> ChildOutcome:
        """Run one of our modules as a child, in the environment of a worker."""
        # -P: a folder `worker` in the present directory is not ours.
        return run([sys.executable, "-P", "-m", *args], self.environment(worker), limit_s)


def resolved(pool: PoolConfig, host: Host) -> tuple[PoolConfig, tuple[str, ...], str]:
    """Resolve a configuration without fetching anything: pool, placements, what is wrong."""
    folder = pool.runtime_dir or _MADE_AT_START
    try:
        pool, placements = resolve.settle(pool, runtime_dir=folder, host=host, fetch=located)
    except ConfigError as error:
        workers = pool.worker or (WorkerConfig(),)
        named = [replace(one, name=one.name or f"worker-{i}") for i, one in enumerate(workers, 1)]
        return replace(pool, worker=tuple(named)), (), str(error)
    if not placements:  # models are chosen as requests come
        return pool, (), ""
    return pool, tuple(describe([one.name for one in pool.worker], placements)), ""


def write(case: Case) -> Path:
    """Write the configuration down for a child."""
    path = case.folder / "pool.json"
    path.touch(mode=0o600)
    path.write_text(configs.dump(case.pool))
    return path


def opened(pool: PoolConfig, fault: str, folder: Path, asked: Asked) -> Case:
    """Make the case of a configuration; `fault` is what kept it from being read."""
    host = read_host()
    pool, placements, problem = resolved(pool, host)
    return Case(
        pool=pool,
        fault=fault or problem,
        placements=placements,
        host=host,
        environ=os.environ,
        folder=folder,
        asked=asked,
    )
