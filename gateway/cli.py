"""The gateway's command line."""

import gc
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from gateway import server
from gateway.settings import VERBOSE, expected_workers, gateway_config, load_pool, share_of_gateway
from protocol.config import config as configs
from protocol.errors import EXIT_CONFIG, ConfigError
from protocol.process import logs
from protocol.process.descriptors import descriptors
from protocol.process.notify import Notifier, tell_why
from protocol.process.parent_death import PARENT_VARIABLE, die_with_parent


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
            pool = replace(pool, log=replace(pool.log, verbosity=VERBOSE))
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
