"""The gateway's settings, from the configuration file, the environment and the options."""

import os
from dataclasses import replace
from pathlib import Path

from gateway.pool.workers.slot_map import ExpectedWorker
from gateway.routes.predictions import for_vertex
from protocol.config import config as configs
from protocol.config.config import GatewayConfig, PoolConfig
from protocol.config.options import table as options
from protocol.config.paths import anchored
from protocol.config.worker_config import alias_names
from protocol.endpoint import ADMIN_SOCKET, WORKERS_SOCKET, bound, check_folder, gateway_endpoint
from protocol.errors import ConfigError, InvalidRequest
from protocol.filenames import absolute
from protocol.process.parent_death import PARENT_VARIABLE
from protocol.wire.schema import read

VERBOSE = 10
"""From this verbosity on llama-server adds the native form to every OpenAI answer."""


def load_pool(path: Path | None) -> PoolConfig:
    """Read the configuration file; the environment takes precedence over it."""
    pool = PoolConfig()
    if path is not None:
        pool = anchored(configs.load(path), absolute(path).parent)
    if PARENT_VARIABLE not in os.environ:  # else a supervisor has applied both
        pool = options.apply(pool, options.from_environ(os.environ, ("gateway", "log")))
    return pool


def gateway_config(pool: PoolConfig, flags: dict[str, object]) -> GatewayConfig:
    """Return the gateway's configuration; the flags take precedence over file and environment."""
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    try:
        config = read(pool.gateway, given)
    except InvalidRequest as error:
        raise ConfigError(error.message) from error
    config = replace(config, verbose=config.verbose or pool.log.verbosity >= VERBOSE)
    config = for_vertex(config, os.environ)
    if pool.runtime_dir and Path(pool.runtime_dir).is_dir():
        check_folder(Path(pool.runtime_dir))
    config = _with_sockets(config, pool.runtime_dir or os.environ.get("RUNTIME_DIRECTORY", ""))
    bound(config.bind, has_keys=bool(config.curve_key_file and config.worker_keys))
    return config


def expected_workers(pool: PoolConfig) -> list[ExpectedWorker]:
    """List the workers whose names and models are known from the configuration."""
    found = []
    for worker in pool.worker:
        aliases = alias_names(worker.alias)
        if worker.name and aliases:
            model, n_slots = min(aliases), max(0, worker.n_slots)
            others = (*sorted(aliases), *worker.aliases)
            found += [ExpectedWorker(name, model, n_slots, others) for name in worker.names]
    return found


def share_of_gateway(config: GatewayConfig, index: int) -> GatewayConfig:
    """Return the configuration of one of several gateways: its endpoints, its share of limits."""
    count, limits = config.gateways, config.limits
    return replace(
        config,
        bind=tuple(gateway_endpoint(endpoint, index) for endpoint in config.bind),
        queue_size=-(-config.queue_size // count),
        limits=replace(
            limits,
            connections=-(-limits.connections // count),
            kept_streams=-(-limits.kept_streams // count),
            kept_mib=-(-limits.kept_mib // count),
        ),
    )


def _with_sockets(config: GatewayConfig, folder: str) -> GatewayConfig:
    """Place the sockets that are not configured in the runtime directory, if there is one."""
    if not folder and not config.bind:
        raise ConfigError("no endpoint for workers: set --bind ipc://PATH or runtime_dir")
    return replace(
        config,
        bind=config.bind or (f"ipc://{Path(folder) / WORKERS_SOCKET}",),
        admin_socket=config.admin_socket or (folder and str(Path(folder) / ADMIN_SOCKET)),
    )
