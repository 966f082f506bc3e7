"""The command `llamapool worker`; it imports none of the supervisor's modules."""

import os
from pathlib import Path
from typing import Any

import click

from protocol.config.config import PoolConfig, WorkerConfig
from protocol.config.options import table as options
from protocol.errors import EXIT_CONFIG, ConfigError
from protocol.process import logs
from protocol.process.descriptors import descriptors
from protocol.process.imports import importing
from protocol.process.notify import tell_why
from worker.host.topology import read_host
from worker.settings import resolve
from worker.settings.arguments import (
    CONTEXT,
    ConfigRefused,
    OptionCommand,
    config_option,
    given,
    log_warnings,
    with_options,
)
from worker.settings.pool_config import read_pool_config


@with_options("worker", "sampling", "log")
@click.command(cls=OptionCommand, context_settings=CONTEXT)
@config_option
@click.option("--name", default="", help="Which worker of the configuration to run.")
@click.option(
    "--connect", multiple=True, help="ZeroMQ endpoint of a gateway; repeat it for several."
)
@click.option("--held", is_flag=True, hidden=True, help="Take no client's task before SIGUSR1.")
def worker(
    config: Path | None, name: str, connect: tuple[str, ...], held: bool, **values: Any
) -> None:
    """Run one worker, which dials a gateway."""
    try:
        descriptors()
        overrides = given(values, ("worker", "sampling", "log"))
        pool = read_pool_config(config, overrides)
        found = _one_worker(pool, name, connect)
        logs.configure(found.name, pool.log)
        log_warnings(overrides)
    except ConfigError as error:
        # A supervisor logs the reason itself; without one it goes to standard error.
        tell_why(error)
        if logs.LOG_FD_VARIABLE in os.environ:
            raise SystemExit(EXIT_CONFIG) from None
        raise ConfigRefused(str(error)) from None
    with importing():
        from worker.process import run
    raise SystemExit(run(found, is_held=held))


def _one_worker(pool: PoolConfig, name: str, connect: tuple[str, ...]) -> WorkerConfig:
    folder = pool.runtime_dir or os.environ.get("RUNTIME_DIRECTORY", "")
    if connect:
        pool = options.apply(pool, {"worker.connect": connect})
    elif not folder and not pool.gateway.bind and not all(table.connect for table in pool.worker):
        raise ConfigError("no gateway to dial: give --connect ipc://PATH, or set runtime_dir")
    # The folder is used only for the local endpoint; with explicit endpoints any will do.
    pool = resolve.resolve(pool, runtime_dir=folder or ".", host=read_host())
    return resolve.pick(pool, name)
