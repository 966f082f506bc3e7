"""Reads and resolves a configuration for a rolling change."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from protocol.config.config import PoolConfig, WorkerConfig
from protocol.config.options import table as options
from protocol.errors import ConfigError, InvalidRequest
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read, refuse_unknown
from worker.host.placement import Host
from worker.settings import resolve
from worker.supervisor.rollout.planner import ConfigSource, ReadPool

_SECTIONS = ("worker", "sampling")
_FIXED = ("worker.name", "worker.connect", "worker.backend")


class ConfigReader:
    """Implements `Reader`: a file, then the options of `serve`, then those of the change."""

    def __init__(
        self, read_file: Callable[[Path | None], PoolConfig], runtime_dir: str, host: Host
    ) -> None:
        self._read_file = read_file
        self._runtime_dir = runtime_dir
        self._host = host

    def __call__(self, wanted: ConfigSource) -> ReadPool:
        """Read, resolve and check everything; raises `ConfigError`. Files may be fetched."""
        config = self._apply(wanted)
        pool = resolve.resolve(config, runtime_dir=self._runtime_dir, host=self._host)
        if resolve.chooses_models(pool):
            raise ConfigError("models_dir, models_preset: restart the server to load on demand")
        return ReadPool(pool=pool, tables=self._tables(config))

    def tables(self, wanted: ConfigSource) -> tuple[WorkerConfig, ...]:
        """Return the workers of a resolved configuration with the values of their tables alone."""
        return self._tables(self._apply(wanted))

    def _apply(self, wanted: ConfigSource) -> PoolConfig:
        config = self._read_file(wanted.path)
        return options.apply(config, typed(wanted.options)) if wanted.options else config

    def _tables(self, config: PoolConfig) -> tuple[WorkerConfig, ...]:
        return resolve.tables(config, runtime_dir=self._runtime_dir, host=self._host)


def typed(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Check options that came as JSON, by the fields' types and bounds; raises `ConfigError`."""
    parts: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if section not in parts or not name or key in _FIXED:
            raise ConfigError(f"option '{key}': a rolling change cannot set it")
        parts[section][name] = value
    try:
        refuse_unknown(WorkerConfig, parts["worker"])
        refuse_unknown(SamplingParams, parts["sampling"])
        read_worker = read(WorkerConfig(), parts["worker"])
        read_sampling = read(SamplingParams(), parts["sampling"])
    except InvalidRequest as error:
        raise ConfigError(error.message) from error
    found = {f"worker.{name}": getattr(read_worker, name) for name in parts["worker"]}
    return found | {f"sampling.{name}": getattr(read_sampling, name) for name in parts["sampling"]}
