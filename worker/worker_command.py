"""The command `llamapool worker`, and what it shares with the others of the command line.

A worker that a supervisor starts imports this, not the supervisor's modules.
"""

import gc
import logging
import os
from pathlib import Path
from typing import Any

import click

from protocol.config import config as configs
from protocol.config.config import PoolConfig, WorkerConfig
from protocol.config.options import table as options
from protocol.errors import EXIT_CONFIG, ConfigError
from protocol.process import logs
from protocol.process.notify import Notifier
from worker.host.topology import read_host
from worker.settings import resolve
from worker.settings.arguments import Given, OptionCommand, given, warnings, with_options
from worker.settings.host_config import host_settings

logger = logging.getLogger("supervisor")

CONTEXT = {
    "help_option_names": ["-h", "--help", "--usage"],
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "max_content_width": 100,
}


def configured(path: Path | None, overrides: Given) -> PoolConfig:
    """Read the file, or the host's settings without one; `overrides` take precedence.

    Paths become absolute: those of the file lie beside it, those of options in the folder in which
    the command was given. Processes that read the result have folders of their own.
    """
    if path is not None:
        config = resolve.anchored(configs.load(path), path.absolute().parent)
    else:
        config = options.apply(PoolConfig(), host_settings(os.environ))
    return resolve.anchored(options.apply(config, overrides.changes), _here())


def _here() -> Path:
    """Return the folder in which the command was given; it may have been removed since."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path(os.environ.get("PWD", "/"))


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="LLAMAPOOL_CONFIG",
    help="TOML file of a pool; options take precedence over it. [env: LLAMAPOOL_CONFIG]",
)


def warn(overrides: Given) -> None:
    """Log the options that have no effect; raises `ConfigError` for one that is refused."""
    for line in warnings(overrides.unused):
        logger.warning("option without effect", extra={"cause": line})


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
        overrides = given(values, ("worker", "sampling", "log"))
        pool = configured(config, overrides)
        one = _one_worker(pool, name, connect)
        logs.configure(one.name, pool.log)
        warn(overrides)
    except ConfigError as error:
        # A supervisor logs the reason itself; without one it goes to standard error.
        Notifier.from_environ().send(X_REASON=error, STATUS=error)
        is_told = logs.LOG_FD_VARIABLE in os.environ
        raise SystemExit(EXIT_CONFIG if is_told else refuse(error)) from None
    from worker.process import run

    gc.freeze()  # no collection walks what was imported, nor does the end of the process: 40 ms
    raise SystemExit(run(one, is_held=held))


def _one_worker(pool: PoolConfig, name: str, connect: tuple[str, ...]) -> WorkerConfig:
    folder = pool.runtime_dir or os.environ.get("RUNTIME_DIRECTORY", "")
    if connect:
        pool = options.apply(pool, {"worker.connect": connect})
    elif not folder and not pool.gateway.bind and not all(one.connect for one in pool.worker):
        raise ConfigError("no gateway to dial: say --connect ipc://PATH, or set runtime_dir")
    # The folder is used only for the local endpoint; with explicit endpoints any will do.
    pool = resolve.resolve(pool, runtime_dir=folder or ".", host=read_host())
    return resolve.pick(pool, name)


def refuse(error: ConfigError) -> int:
    """Print what is wrong with the configuration and return the exit code for it."""
    click.echo(f"llamapool: {error}", err=True)
    return EXIT_CONFIG
