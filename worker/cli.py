"""The command line: `llamapool` with its lazy sub-commands, and two of them, `serve` and `worker`.

Options are made from `protocol/config/options/`. Nothing heavy is imported here: `--help` and the
supervisor must start at once, and work where llama_cpp is missing or broken.
"""

import ast
import errno
import gc
import importlib.util
import itertools
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protocol.config import config as configs
from protocol.config.config import LogConfig, PoolConfig
from protocol.config.options import table as options
from protocol.errors import EXIT_ERROR, ConfigError
from protocol.filenames import absolute
from protocol.process import logs
from protocol.process.descriptors import descriptors
from protocol.process.listening import Listeners, open_listeners
from protocol.process.notify import Notifier
from worker.host.placement import Host, Placement, grouped
from worker.host.topology import read_host
from worker.keygen import keygen
from worker.models.catalog import open_catalog
from worker.settings import resolve
from worker.settings.arguments import (
    CONTEXT,
    ConfigRefused,
    ExplicitSettings,
    OptionCommand,
    config_option,
    given,
    log_warnings,
    with_options,
)
from worker.settings.config_show import Origins, numbers, places_in, toml
from worker.settings.download import located, with_remote_preset
from worker.settings.information_options import information_options, version_option
from worker.settings.pool_config import (
    KEPT_UNTIL_RESTART,
    needing_restart,
    read_pool_config,
    with_endpoints_of,
)
from worker.supervisor.children import launch
from worker.supervisor.control import ControlServer
from worker.supervisor.on_demand import OnDemand
from worker.supervisor.orders import Orders
from worker.supervisor.rollout.fleet import Fleet
from worker.supervisor.rollout.plan import planned as planned_worker
from worker.supervisor.rollout.planner import ConfigSource
from worker.supervisor.rollout.questions import Questions
from worker.supervisor.rollout.reader import ConfigReader
from worker.supervisor.rollout.rollouts import Rollouts
from worker.supervisor.runtime_directory import runtime_directory
from worker.supervisor.signal_queue import starting
from worker.supervisor.start_notice import StartNotice, places
from worker.supervisor.supervisor import Supervisor, SupervisorSettings
from worker.supervisor.terminal import Console
from worker.worker_command import worker

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger("supervisor")

_GROUP = "llamapool.commands"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk."""


class LazyGroup(click.Group):
    """Finds sub-commands by their entry points and imports only the one that is run."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command, with the null device in place of standard streams that are closed.

        Otherwise a socket would get the number of one, and what is printed there. Output that a
        full disk does not take is an error of one line.
        """
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:
                setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - until the end
        try:
            return super().main(*args, **extra)
        except OSError as error:
            if error.errno not in _FULL or error.filename is not None:
                raise
            # What is left of the output would fail again at the end of the process.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            click.echo(f"llamapool: cannot write: {error.strerror}", err=True)
            raise SystemExit(EXIT_ERROR) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands of this file and of every installed entry point."""
        return sorted({*super().list_commands(ctx), *_entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; if that fails, return a command that prints the reason."""
        if command := super().get_command(ctx, cmd_name):
            return command
        entry = _entry_points().get(cmd_name)
        if entry is None:
            return None
        try:
            command = entry.load()
        except ImportError as error:
            return _broken(cmd_name, error)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing those of other packages."""
        own = {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        others = {name: _short_help(entry) for name, entry in _entry_points().items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted({**others, **own}.items()))


def _short_help(entry: "EntryPoint") -> str:
    """Read the first line of a command's docstring from its source."""
    try:
        spec = importlib.util.find_spec(entry.module)
        source = Path(spec.origin or "").read_text() if spec else ""
    except (ImportError, OSError):
        return ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == entry.attr:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def _entry_points() -> "dict[str, EntryPoint]":
    import importlib.metadata  # 4 MB of memory; not needed once the pool runs

    return {entry.name: entry for entry in importlib.metadata.entry_points(group=_GROUP)}


def _broken(name: str, error: ImportError) -> click.Command:
    def fail() -> None:
        raise click.ClickException(f"{name} cannot start: {error}")

    return click.Command(name, callback=fail, help=f"(cannot start: {error})")


_SETTABLE = tuple(options.SECTIONS)


@click.group(cls=LazyGroup, context_settings=CONTEXT)
def main() -> None:
    """Serve GGUF models from many GPUs behind one address.

    `llamapool serve -m model.gguf` starts a server. `llamapool COMMAND --help` explains a command.
    """


main.params.append(version_option())


@with_options(*_SETTABLE)
@main.command(cls=OptionCommand, context_settings=CONTEXT)
@config_option
def serve(config: Path | None, **values: Any) -> None:
    """Serve everything on this host: a gateway and its workers.

    Takes llama-server's flags for one model, or --config for several. Without a model it serves
    the one that is installed with it.

    \b
      llamapool serve -m model.gguf -c 16384 -np 4   four requests at once
      llamapool serve -m model.gguf -ngl all         all layers on the GPU
      llamapool serve --config pool.toml             several models or workers
    """
    console = Console(sys.stderr.fileno(), is_terminal=sys.stderr.isatty())
    gc.freeze()  # no collection walks what was imported, nor does the end of the process: 25 ms
    try:
        with starting(is_terminal=console.is_terminal):
            code = _serve(config, given(values, _SETTABLE), console)
    except ConfigError as error:
        raise ConfigRefused(str(error)) from None
    raise SystemExit(code)


def _serve(path: Path | None, overrides: ExplicitSettings, console: Console) -> int:
    """Run the pool of a configuration file and of options; raises `ConfigError`."""
    descriptors()
    pool = read_pool_config(path, overrides)
    pool = _with_log_settings(pool, overrides, console)
    logs.configure("supervisor", pool.log, stream=console)
    log_warnings(overrides)
    first, pool = pool, with_remote_preset(pool)
    host = read_host()
    with runtime_directory(pool.runtime_dir) as folder:
        pool = _on_this_host(pool, folder, host)
        with closing(open_listeners(pool.gateway)) as listeners:
            return _supervise(pool, overrides, Start(folder, console, host, listeners, path, first))


serve.params += information_options()


@dataclass(frozen=True, slots=True)
class Start:
    """Where a pool is started."""

    folder: Path
    """The runtime directory."""
    console: Console
    host: Host
    listeners: Listeners
    config: Path | None
    """The configuration file."""
    first: PoolConfig
    """The configuration as it was read."""


def _with_log_settings(
    pool: PoolConfig, overrides: ExplicitSettings, console: Console
) -> PoolConfig:
    """Choose what is logged: on a terminal only warnings, unless -v, -lv or --log-file is given."""
    if not console.is_terminal:
        return pool
    is_asked_for = (
        pool.log != LogConfig(colors=pool.log.colors) or "log.verbosity" in overrides.settings
    )
    log = pool.log if is_asked_for else replace(pool.log, verbosity=2)
    # The children write to a pipe, so only this process can see whether it ends at a terminal.
    return replace(pool, log=replace(log, colors="on" if log.colors == "auto" else log.colors))


def _on_this_host(pool: PoolConfig, folder: Path, host: Host) -> PoolConfig:
    """Resolve the configuration, and log what each worker gets of the machine."""
    pool, placements = resolve.settle(pool, runtime_dir=str(folder), host=host)
    if placements:
        _log_placements([worker.name for worker in pool.worker], placements)
    return pool


def _log_placements(names: Sequence[str], placements: Sequence[Placement]) -> None:
    for placement, workers in grouped(names, placements).items():
        logger.info(
            "workers placed",
            extra={
                "workers": workers,
                "n_threads": placement.n_threads,
                "n_threads_batch": placement.n_threads_batch,
                "cpus": placement.cpus,
                "numa": placement.numa,
                "poll": placement.poll,
                "weights": "read" if placement.reads else "mapped",
                "cause": placement.why,
            },
        )


def _supervise(pool: PoolConfig, overrides: ExplicitSettings, start: Start) -> int:
    """Write the resolved configuration down and run its processes."""
    folder, console = start.folder, start.console
    orders = _orders(pool, overrides, start)
    pool = replace(pool, gateway=start.listeners.config)
    path = folder / "pool.json"
    _write_down(pool, path)
    planned = replace(pool, worker=()) if orders.workers.models is not None else pool
    settings = SupervisorSettings(
        launches=launch.launches(planned, path, os.environ, start.listeners.fds),
        runtime_dir=folder,
        listeners=start.listeners,
        reread=partial(_reread_gateways, pool, overrides, start, itertools.count(2)),
        orders=orders,
        notice=StartNotice(
            places=places(start.host, planned.worker),
            has_key=pool.gateway.has_keys,
            has_page=pool.gateway.ui or bool(pool.gateway.static_path),
        ),
    )
    return Supervisor(settings, console, Notifier.from_environ()).run()


def _write_down(pool: PoolConfig, path: Path) -> None:
    """Write the configuration that the processes read; raises `ConfigError`."""
    try:
        path.touch(mode=0o600)
        path.write_text(configs.dump(pool))
    except OSError as error:
        remedy = "make room, or name another folder with runtime_dir or TMPDIR"
        raise ConfigError(f"cannot write {path}: {error.strerror}; {remedy}") from error


def _reread_gateways(
    pool: PoolConfig, overrides: ExplicitSettings, start: Start, numbers: Iterator[int]
) -> tuple[launch.Launch, ...]:
    """Read the configuration again and write it for new gateways; raises `ConfigError`."""
    fresh = _reread_pool(overrides, start.console, start.config)
    is_on_demand = resolve.chooses_models(pool)
    if not is_on_demand:  # all of it, or else the workers alone would refuse it
        whole = with_endpoints_of(start.first, fresh)
        resolve.resolve(whole, runtime_dir=str(start.folder), host=start.host, fetch=located)
    if names := [*needing_restart(start.first, fresh, is_on_demand=is_on_demand)]:
        logger.warning(
            "settings not reloaded", extra={"keys": names, "hint": "restart to change them"}
        )
    kept = {name: getattr(pool.gateway, name) for name in KEPT_UNTIL_RESTART}
    path = start.folder / f"pool-{next(numbers)}.json"
    path.touch(mode=0o600)
    changed = replace(pool, gateway=replace(fresh.gateway, **kept))
    path.write_text(configs.dump(changed))
    return launch.gateways(changed, path, os.environ, start.listeners.fds)


def _orders(pool: PoolConfig, overrides: ExplicitSettings, start: Start) -> Orders:
    """Make what carries out orders: of models on demand, or of rolling changes."""
    control = ControlServer(Path(pool.gateway.control))
    if resolve.chooses_models(pool):
        catalog = open_catalog(pool, overrides.on_command_line, os.environ)
        models_max = pool.gateway.models_max
        on_demand = OnDemand(catalog, control, start.folder, models_max=models_max)
        return Orders(control, on_demand)
    reader = ConfigReader(
        lambda path: with_endpoints_of(start.first, _reread_pool(overrides, start.console, path)),
        str(start.folder),
        start.host,
    )
    first = ConfigSource(path=absolute(start.config) if start.config else None)
    fleet = Fleet(start.folder, os.environ, start.host, Questions(control))
    tables = reader.tables(first)
    fleet.workers = {
        table.name: planned_worker(table, config)
        for table, config in zip(tables, pool.worker, strict=True)
    }
    return Orders(control, Rollouts(fleet, reader, first, pool))


def _reread_pool(overrides: ExplicitSettings, console: Console, path: Path | None) -> PoolConfig:
    """Read a configuration file under the options that `serve` was given; raises `ConfigError`."""
    return _with_log_settings(read_pool_config(path, overrides), overrides, console)


@main.group(context_settings=CONTEXT)
def config() -> None:
    """Look at a configuration."""


@with_options(*_SETTABLE)
@config.command(cls=OptionCommand, context_settings=CONTEXT)
@config_option
@click.option("--origin", is_flag=True, help="Print beside each value where it comes from.")
def show(config: Path | None, origin: bool, **values: Any) -> None:
    """Print what `serve` would run with these options, as TOML. Nothing is downloaded."""
    try:
        overrides = given(values, _SETTABLE)
        pool = with_remote_preset(read_pool_config(config, overrides), fetches=False)
        has_places = config and config.is_file() and config.suffix != ".json"
        folder = pool.runtime_dir or resolve.MADE_AT_START
        host = read_host()
        resolved = resolve.resolve(pool, runtime_dir=folder, host=host, fetch=located)
        origins = Origins(
            flags={field: name for field, (_, name) in overrides.settings.items()},
            path=config,
            places=places_in(config.read_text()) if config and has_places else {},
            workers=numbers(pool),
        )
        click.echo(toml(resolved, origins if origin else None), nl=False)
    except ConfigError as error:
        raise ConfigRefused(str(error)) from None


main.add_command(keygen)
main.add_command(worker)


if __name__ == "__main__":
    main()
