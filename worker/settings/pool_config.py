"""Reads the configuration of a command: a file or the host's settings, then the options."""

import os
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from protocol.config import config as configs
from protocol.config.config import PoolConfig
from protocol.config.options import table as options
from protocol.config.paths import anchored
from protocol.filenames import absolute, working_directory
from worker.settings.arguments import ExplicitSettings
from worker.settings.host_config import host_settings

_ANY_ORIGIN = configs.GatewayConfig().cors_origins
_SET_BY_SERVE = ("control", "siblings")
KEPT_UNTIL_RESTART = (
    "host",
    "port",
    "reuse_port",
    "gateways",
    "bind",
    "admin_socket",
    "models_dir",
    "models_preset",
    "models_cache",
    "models_on_demand",
    "models_max",
    *_SET_BY_SERVE,
)
"""Keys of the gateway that only a restart of the whole pool changes."""


def read_pool_config(path: Path | None, overrides: ExplicitSettings) -> PoolConfig:
    """Read the file, or the host's settings without one; `overrides` take precedence.

    Relative paths become absolute: those in the file start at its folder, those of options at the
    working directory. Raises `ConfigError`.
    """
    if path is not None:
        config = anchored(configs.load(path), absolute(path).parent)
    else:
        config = options.apply(PoolConfig(), host_settings(os.environ))
    changes = overrides.changes
    if overrides.wants_tools and config.gateway.cors_origins == _ANY_ORIGIN:
        changes = {"gateway.cors_origins": ("localhost",), **changes}
    return anchored(options.apply(config, changes), working_directory())


def needing_restart(first: PoolConfig, fresh: PoolConfig, *, is_on_demand: bool) -> Iterator[str]:
    """Name the keys whose values differ from those of the start, and that only a restart changes.

    `is_on_demand`: the pool loads models on demand, which a remote preset may have decided.
    """
    if fresh.runtime_dir != first.runtime_dir:
        yield "runtime_dir"
    for name in KEPT_UNTIL_RESTART:
        is_read = name not in _SET_BY_SERVE
        if is_read and getattr(fresh.gateway, name) != getattr(first.gateway, name):
            yield f"gateway.{name}"
    if is_on_demand and fresh.worker != first.worker:
        yield "worker"  # what all models on demand have in common
    for row in fields(first.log):
        if getattr(fresh.log, row.name) != getattr(first.log, row.name):
            yield f"log.{row.name}"


def with_endpoints_of(first: PoolConfig, fresh: PoolConfig) -> PoolConfig:
    """Return `fresh` with the endpoints of the running gateways, which workers have to dial."""
    bind, gateways = first.gateway.bind, first.gateway.gateways
    return replace(fresh, gateway=replace(fresh.gateway, bind=bind, gateways=gateways))
