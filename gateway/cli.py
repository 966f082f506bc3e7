"""The gateway's command line: reads the configuration file, the environment and the options."""

import gc
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from gateway import server
from gateway.pool.workers.slot_map import ExpectedWorker
from gateway.routes.predictions import for_vertex
from protocol.config import config as configs
from protocol.config.config import GatewayConfig, PoolConfig
from protocol.config.options import table as options
from protocol.config.paths import anchored
from protocol.endpoint import ADMIN_SOCKET, WORKERS_SOCKET, bound, gateway_endpoint
from protocol.errors import EXIT_CONFIG, ConfigError, InvalidRequest
from protocol.filenames import absolute
from protocol.process import logs
from protocol.process.descriptors import descriptors
from protocol.process.notify import Notifier, tell_why
from protocol.process.parent_death import PARENT_VARIABLE, die_with_parent
from protocol.wire.schema import read

_VERBOSE = 10
"""From this verbosity on llama-server adds the native form to every OpenAI answer."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    envvar="LLAMAPOOL_CONFIG",
    help="TOML file of a pool; options take precedence over it. [env: LLAMAPOOL_CONFIG]",
)
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on; 0 lets the system choose.")
@click.option("--bind", multiple=True, help="ZeroMQ endpoint that workers dial; may be repeated.")
@click.option("--gateway-curve-key", "curve_key_file", help="File of the secret key, for tcp.")
@click.option("--worker-keys", help="Folder of the public keys of workers, for tcp.")
@click.option("--api-key", multiple=True, help="Key that may use the API; may be repeated.")
@click.option("--api-key-file", multiple=True, help="Key file; may be repeated.")
@click.option("--api-key-admin", multiple=True, help="Key of an admin; may be repeated.")
@click.option("--metrics/--no-metrics", default=None, help="Serve GET /metrics.")
@click.option("--slots/--no-slots", default=None, help="Serve GET /slots.")
@click.option("--index", type=int, default=0, hidden=True, help="Which of several this one is.")
@click.option("--keys-on-stdin", is_flag=True, hidden=True, help="Read the keys that `serve` has.")
@click.option("-v", "--verbose", is_flag=True, help="Log debug lines as well.")
def gateway(
    path: Path | None, verbose: bool, index: int, keys_on_stdin: bool, **flags: object
) -> None:
    """Run the gateway alone: HTTP on one side, workers dialling in on the other."""
    die_with_parent()
    try:
        descriptors()
        pool = load_pool(path)
        if verbose:
            pool = replace(pool, log=replace(pool.log, verbosity=_VERBOSE))
        logs.configure(f"gateway-{index}" if pool.gateway.gateways > 1 else "gateway", pool.log)
        if not pool.log.access:
            logging.getLogger("gateway.pool.requests.book").setLevel(logging.WARNING)
        if keys_on_stdin:
            pool = replace(pool, gateway=configs.load_keys(pool.gateway, _read_stdin()))
        config = share_of_gateway(gateway_config(pool, flags), index)
        code = server.run(config, Notifier.from_environ(), expected_workers(pool))
    except ConfigError as error:
        tell_why(error)
        if PARENT_VARIABLE not in os.environ:  # else the supervisor logs it
            click.echo(f"llamapool gateway: {error}", err=True)
        code = EXIT_CONFIG
    gc.freeze()  # the end of the process need not walk what was imported: 60 ms
    raise SystemExit(code)


def _read_stdin() -> bytes:
    """Read standard input to its end and close it, so that no other process can read it again."""
    data = sys.stdin.buffer.read()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, sys.stdin.fileno())
    os.close(null)
    return data


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
    config = replace(config, verbose=config.verbose or pool.log.verbosity >= _VERBOSE)
    config = for_vertex(config, os.environ)
    config = _with_sockets(config, pool.runtime_dir or os.environ.get("RUNTIME_DIRECTORY", ""))
    bound(config.bind, has_keys=bool(config.curve_key_file and config.worker_keys))
    return config


def expected_workers(pool: PoolConfig) -> list[ExpectedWorker]:
    """List the workers whose names and slots are known from the configuration."""
    return [
        ExpectedWorker(worker.name, worker.alias, worker.n_slots)
        for worker in pool.worker
        if worker.name and worker.alias and worker.count == 1 and worker.n_slots > 0
    ]


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
