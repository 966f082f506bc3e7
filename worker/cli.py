"""The command line: `llamapool` with its lazy sub-commands, and two of them, `serve` and `worker`.

Options are made from `protocol/options.py`. Nothing heavy is imported here: `--help` and the
supervisor must start at once, and work where llama_cpp is missing or broken.
"""

import ast
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from protocol import config as configs
from protocol import logs, options
from protocol.config import PoolConfig, WorkerConfig
from protocol.errors import ConfigError, InvalidRequest
from protocol.notify import Notifier
from worker import launch, resolve
from worker.respawn import EXIT_CONFIG
from worker.rundir import runtime_directory
from worker.supervisor import Settings, Supervisor
from worker.terminal import stderr_console

_GROUP = "llamapool.commands"
_CONTEXT = {
    "help_option_names": ["-h", "--help", "--usage"],
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "max_content_width": 100,
}

Command = TypeVar("Command", bound=click.Command)


class LazyGroup(click.Group):
    """Finds sub-commands as entry points and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands of this file and of every installed entry point."""
        return sorted({*super().list_commands(ctx), *_entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; one that cannot be imported says why when it runs."""
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


def _short_help(entry: importlib.metadata.EntryPoint) -> str:
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


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=_GROUP)}


def _broken(name: str, error: ImportError) -> click.Command:
    def fail() -> None:
        raise click.ClickException(f"{name} cannot start: {error}")

    return click.Command(name, callback=fail, help=f"(cannot start: {error})")


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"llamapool {importlib.metadata.version('llamapool')}")
        ctx.exit()


class FieldType(click.ParamType[Any]):
    """Reads an argument as its field of the configuration."""

    def __init__(self, option: options.Option) -> None:
        self.name = _metavar(option)
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the field's value, or fail as a usage error."""
        try:
            return options.read_text(self._option, value, self._option.flags[-1])
        except InvalidRequest as error:
            self.fail(error.message, param, ctx)


def _metavar(option: options.Option) -> str:
    if option.row.spec.choices:
        return "|".join(filter(None, option.row.spec.choices))
    kind = option.row.kind
    return "N" if kind in (int, float) else "TEXT"


def _declared(option: options.Option, index: int) -> click.Option:
    """Make the click option of one row; its value arrives as parameter `option_<index>`."""
    names = [f"option_{index}", *option.flags]
    text = option.row.spec.doc + (f" [env: {option.env}]" if option.env else "")
    if option.is_switch:
        if option.off:
            # click pairs them by position: the first holds the slash, the rest are synonyms.
            pairs = [f"{on}/{off}" for on, off in zip(option.flags, option.off, strict=False)]
            rest = [f" /{off}" for off in option.off[len(option.flags) :]]
            names = [f"option_{index}", *pairs, *rest]
        return click.Option(names, is_flag=True, default=None, help=text)
    extra: dict[str, Any] = {"multiple": True} if option.repeats else {"default": None}
    if option.bare:
        extra |= {"is_flag": False, "flag_value": option.bare}
    return click.Option(names, type=FieldType(option), help=text, **extra)


def _with_options(*sections: str) -> Callable[[Command], Command]:
    """Add the options of these sections to a command."""

    def decorate(command: Command) -> Command:
        command.params += [
            _declared(option, index)
            for index, option in enumerate(options.OPTIONS)
            if option.section in sections
        ]
        return command

    return decorate


def _changes(values: dict[str, Any], sections: Iterable[str]) -> dict[str, Any]:
    """Collect `{field: value}` from the environment and, above it, from the command line."""
    changes = options.from_environ(os.environ, sections)
    for index, option in enumerate(options.OPTIONS):
        value = values.get(f"option_{index}")
        if value is None or value == () or (option.value is not None and not value):
            continue
        if option.repeats:
            value = tuple(item for part in value for item in part)
        value = value if option.value is None else option.value
        changes |= dict.fromkeys(filter(None, (option.field, option.also)), value)
    return changes


def _configured(path: Path | None, values: dict[str, Any], *sections: str) -> PoolConfig:
    config = PoolConfig()
    if path is not None:
        config = resolve.anchored(configs.load(path), path.absolute().parent)
    return options.apply(config, _changes(values, sections))


_config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="LLAMAPOOL_CONFIG",
    help="TOML file of a pool; flags stand above it. [env: LLAMAPOOL_CONFIG]",
)
_verbose_option = click.option("-v", "--verbose", is_flag=True, help="Log in detail.")


@click.group(cls=LazyGroup, context_settings=_CONTEXT)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version)
def main() -> None:
    """Serve GGUF models from many GPUs behind one address."""


@_with_options("gateway", "worker", "sampling")
@main.command(context_settings=_CONTEXT)
@_config_option
@_verbose_option
def serve(config: Path | None, verbose: bool, **values: Any) -> None:
    """Serve everything on this host: a gateway and its workers.

    Takes llama-server's flags for one model, or --config for several. Without a model it serves
    the one that is installed with it.
    """
    console = stderr_console(sys.stderr)
    logs.configure("supervisor", level="DEBUG" if verbose else "INFO", stream=console)
    try:
        pool = _configured(config, values, *options.SECTIONS)
        with runtime_directory(pool.runtime_dir) as folder:
            pool = resolve.resolve(pool, runtime_dir=str(folder), n_cores=resolve.count_cores())
            path = folder / "pool.json"
            path.touch(mode=0o600)
            path.write_text(configs.dump(pool))
            settings = Settings(
                launches=launch.launches(pool, path, os.environ, ("-v",) if verbose else ()),
                runtime_dir=folder,
                drain_timeout_s=pool.gateway.drain_timeout_s,
                has_key=bool(pool.gateway.api_key or pool.gateway.api_key_file),
            )
            code = Supervisor(settings, console, Notifier.from_environ()).run()
    except ConfigError as error:
        raise SystemExit(_refuse(error)) from None
    raise SystemExit(code)


@_with_options("worker", "sampling")
@main.command(context_settings=_CONTEXT)
@_config_option
@_verbose_option
@click.option("--name", default="", help="Which worker of the configuration to run.")
@click.option("--connect", multiple=True, help="ZeroMQ endpoint of a gateway; may be repeated.")
def worker(
    config: Path | None, verbose: bool, name: str, connect: tuple[str, ...], **values: Any
) -> None:
    """Run one worker, which dials a gateway."""
    try:
        one = _one_worker(_configured(config, values, "worker", "sampling"), name, connect)
    except ConfigError as error:
        raise SystemExit(_refuse(error)) from None
    logs.configure(one.name, level="DEBUG" if verbose else "INFO")
    from worker.process import run

    raise SystemExit(run(one))


def _one_worker(pool: PoolConfig, name: str, connect: tuple[str, ...]) -> WorkerConfig:
    folder = pool.runtime_dir or os.environ.get("RUNTIME_DIRECTORY", "")
    if connect:
        pool = options.apply(pool, {"worker.connect": connect})
    elif not folder and not pool.gateway.bind and not all(one.connect for one in pool.worker):
        raise ConfigError("no gateway to dial: say --connect ipc://PATH, or set runtime_dir")
    # Any folder will do when every endpoint is given; it is used only to name the local one.
    pool = resolve.resolve(pool, runtime_dir=folder or ".", n_cores=resolve.count_cores())
    return resolve.pick(pool, name)


def _refuse(error: ConfigError) -> int:
    click.echo(f"llamapool: {error}", err=True)
    return EXIT_CONFIG


if __name__ == "__main__":
    main()
