"""The examined case: a pool as `serve` would run it, and the host."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.config import config as configs
from protocol.config.config import PoolConfig, WorkerConfig
from protocol.errors import ConfigError
from worker.host.child import ChildOutcome, run
from worker.host.placement import Host, describe
from worker.host.topology import read_host
from worker.models.catalog import open_catalog
from worker.settings import resolve
from worker.settings.download import fetched, located, with_remote_preset
from worker.supervisor.children import launch


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Options of the examination."""

    loads: bool = True
    """Whether to load the models."""
    limit_s: float = 300.0
    """Longest time for loading one model, in seconds."""
    is_gpu_wanted: bool = False
    """Whether layers or devices were given; the default alone does not ask for a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCase:
    """A pool on a host."""

    pool: PoolConfig
    """The defaults if the configuration cannot be read."""
    is_readable: bool
    """Whether the configuration could be read; it may be invalid all the same."""
    fault: str
    """Error of the configuration; empty if it is valid."""
    placements: tuple[str, ...]
    host: Host
    environ: Mapping[str, str]
    folder: Path | None
    """Folder for the configuration of a child; None if none can be made."""
    asked: DoctorOptions

    @property
    def workers(self) -> tuple[WorkerConfig, ...]:
        """Return the workers that run llama.cpp."""
        return tuple(worker for worker in self.pool.worker if worker.backend == "llama")

    def environment(self, worker: WorkerConfig | None = None) -> Mapping[str, str]:
        """Return what the process of a worker would have as its environment."""
        (launched,) = launch.workers([worker or WorkerConfig()], Path(), self.environ)
        return launched.env

    def ask(
        self,
        *args: str,
        worker: WorkerConfig | None = None,
        limit_s: float = 30.0,
        stdin: bytes = b"",
    ) -> ChildOutcome:
        """Run a module of llamapool as a child, in the environment of a worker."""
        # -P: do not import a folder `worker` of the current directory.
        command = [sys.executable, "-P", "-m", *args]
        return run(command, self.environment(worker), limit_s, stdin)


def resolved(pool: PoolConfig, host: Host) -> tuple[PoolConfig, tuple[str, ...], str]:
    """Resolve a configuration without a download; return it, its placements and its error."""
    folder = pool.runtime_dir or resolve.MADE_AT_START
    try:
        pool = with_remote_preset(pool, fetches=False)
        pool, placements = resolve.settle(pool, runtime_dir=folder, host=host, fetch=_at_hand)
    except ConfigError as error:
        return _as_far(pool, folder), (), str(error)
    if not placements:  # models are loaded on demand
        try:
            open_catalog(pool, {}, os.environ)
        except ConfigError as error:
            return pool, (), str(error)
        return pool, (), ""
    return pool, tuple(describe([worker.name for worker in pool.worker], placements)), ""


def _as_far(pool: PoolConfig, folder: str) -> PoolConfig:
    """Resolve of an invalid configuration what can be: names of workers, and the gateway."""
    named = [
        replace(worker, name=worker.name or f"worker-{i}")
        for i, worker in enumerate(pool.worker or (WorkerConfig(),), 1)
    ]
    pool = replace(pool, worker=tuple(named), runtime_dir=folder)
    try:
        return replace(pool, gateway=resolve.placed_gateway(pool, folder))
    except ConfigError:
        return pool


def _at_hand(worker: WorkerConfig) -> WorkerConfig:
    """Return the worker with the files that were downloaded before; others keep their address."""
    try:
        return fetched(replace(worker, offline=True))
    except ConfigError:
        return located(worker)


def write(case: DoctorCase) -> Path | None:
    """Write the configuration to a file for a child; None if there is no folder for it."""
    if case.folder is None:
        return None
    path = case.folder / "pool.json"
    path.touch(mode=0o600)
    path.write_text(configs.dump(case.pool))
    return path


def opened(pool: PoolConfig, fault: str, folder: Path | None, asked: DoctorOptions) -> DoctorCase:
    """Make the case of a configuration; `fault` is its error, if it could not be read."""
    host = read_host()
    pool, placements, problem = resolved(pool, host)
    return DoctorCase(
        pool=pool,
        is_readable=not fault,
        fault=fault or problem,
        placements=placements,
        host=host,
        environ=os.environ,
        folder=folder,
        asked=asked,
    )
