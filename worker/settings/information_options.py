"""Options that print something and exit: versions, devices, local models, shell completion."""

import os
import sys
from collections.abc import Callable

import click
from click.shell_completion import BashComplete

from protocol.version import version
from worker.files.hub_cache import cached_models
from worker.host import child

_LIMIT_S = 120.0
"""Seconds for llama.cpp to load its library and look at the devices."""
_UNKNOWN = "unknown: it cannot be loaded here, see llamapool doctor"


def versions() -> str:
    """Return the version of llamapool and the build of its llama.cpp."""
    return f"llamapool {version()}\nllama.cpp {_asked('build') or _UNKNOWN}"


def devices() -> str:
    """List the devices that --device takes, as llama-server prints them."""
    report = _asked("report")
    if not report:
        raise click.ClickException("llama.cpp cannot be loaded here: see llamapool doctor")
    return report


def models() -> str:
    """List the models that --hf-repo finds without the network, as llama-server prints them."""
    found = cached_models(os.environ)
    lines = [f"{number:4}. {name}" for number, name in enumerate(found, 1)]
    return "\n".join([f"number of models in cache: {len(found)}", *lines])


def completion(ctx: click.Context) -> str:
    """Return the script for bash completion."""
    root = ctx.find_root()
    return BashComplete(root.command, {}, "llamapool", "_LLAMAPOOL_COMPLETE").source()


def _asked(fact: str) -> str:
    """Read a fact in a child process, because llama.cpp may be missing or broken."""
    argv = (sys.executable, "-P", "-m", "worker.llama.inspect")
    return str(child.run(argv, os.environ, _LIMIT_S).facts.get(fact, ""))


def _option(flags: str, tell: Callable[[click.Context], str], text: str) -> click.Option:
    def callback(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            click.echo(tell(ctx))
            ctx.exit()

    return click.Option(
        flags.split(), is_flag=True, expose_value=False, is_eager=True, callback=callback, help=text
    )


def information_options() -> list[click.Option]:
    """Return the options; each ends the command."""
    return [
        version_option(),
        _option("--list-devices", lambda _: devices(), "Print the devices of --device, and end."),
        _option("-cl --cache-list", lambda _: models(), "Print the models at hand, and end."),
        _option("--completion-bash", completion, "Print a script for bash, and end."),
    ]


def version_option() -> click.Option:
    """Return the option --version."""
    return _option("--version", lambda _: versions(), "Print version and build, and end.")
