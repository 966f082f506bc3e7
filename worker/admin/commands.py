"""The commands that show a running pool and change it."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from protocol.config.config import PoolConfig
from protocol.config.options import table as options
from protocol.config.paths import anchored
from protocol.errors import EXIT_ERROR, ConfigError
from protocol.filenames import absolute, working_directory
from worker.admin.client import AdminClient, AdminError, NoPoolError, find_pool, supervisor_pid
from worker.admin.table import rollout_line, table
from worker.settings.arguments import (
    CONTEXT,
    ConfigRefused,
    OptionCommand,
    given,
    with_options,
)
from worker.settings.seconds import Seconds
from worker.supervisor.rollout.plan import find_process

_POLL_S = 0.25
"""Seconds between two looks at a rolling change."""
_WATCH_S = 1.0
"""Seconds between two drawings of `llamapool status --watch`."""

Command = TypeVar("Command", bound=Callable[..., Any])


_runtime_dir_option = click.option(
    "--runtime-dir",
    default="",
    envvar="RUNTIME_DIRECTORY",
    help="Runtime directory of a pool on this host. [default: that of this user's only pool] "
    "[env: RUNTIME_DIRECTORY]",
)


def _pool_options(command: Command) -> Command:
    """Add the options that choose the pool."""
    for option in (
        click.option(
            "--url",
            default="",
            envvar="LLAMAPOOL_URL",
            help="Address of the pool: http://HOST:PORT. [env: LLAMAPOOL_URL]",
        ),
        click.option(
            "--admin-key",
            default="",
            envvar="LLAMA_API_KEY",
            help="An admin's key, with --url. [env: LLAMA_API_KEY]",
        ),
        _runtime_dir_option,
    ):
        command = option(command)
    return command


def _client(pool: Mapping[str, str], timeout_s: float = 30.0) -> AdminClient:
    return AdminClient(find_pool(pool["url"], pool["admin_key"], pool["runtime_dir"]), timeout_s)


@click.command(context_settings=CONTEXT)
@_pool_options
@click.option("--json", "is_json", is_flag=True, help="Print JSON; with --watch an object a line.")
@click.option("--watch", is_flag=True, help="Print again every second, until Ctrl-C.")
def status(*, is_json: bool, watch: bool, **pool: str) -> None:
    """Show the workers, the queue and the gateways of a running pool."""
    client = _client(pool)
    while True:
        found = client.get("/admin/status")
        if watch and not is_json and sys.stdout.isatty():
            click.clear()
        indent = None if watch else 1
        click.echo(json.dumps(found, indent=indent) if is_json else table(found))
        if not watch:
            return
        time.sleep(_WATCH_S)


@click.command(context_settings=CONTEXT)
@click.argument("worker")
@_pool_options
@click.option("--wait", is_flag=True, help="Return once the worker has left.")
@click.option(
    "--timeout",
    type=Seconds(),
    default=600.0,
    show_default="600",
    help="Seconds that --wait waits.",
)
@click.option("--force", is_flag=True, help="Also if it is the only worker of its model.")
def drain(worker: str, *, wait: bool, timeout: float, force: bool, **pool: str) -> None:
    """Take a worker out of service: its streams go on at other workers, and its process ends."""
    client = _client(pool)
    client.post("/admin/drain", worker=worker, force=force)
    deadline = time.monotonic() + timeout
    while wait and not _has_left(client, worker):
        if time.monotonic() >= deadline:
            raise AdminError(f"{worker} has not left within {timeout:g} s")
        time.sleep(_POLL_S)
    click.echo(f"{worker} {'has left' if wait else 'is leaving'}")


@click.command(context_settings=CONTEXT)
@click.argument("worker")
@_pool_options
def undrain(worker: str, **pool: str) -> None:
    """Start a worker now that was drained, or that died and waits."""
    _client(pool).post("/admin/undrain", worker=worker)
    click.echo(f"{worker} starts again")


def _has_left(client: AdminClient, worker: str) -> bool:
    workers = client.get("/admin/workers")["workers"]
    states = {entry["name"]: entry["state"] for entry in workers}
    name = find_process(states, worker)
    return not name or states[name] == "drained"


@with_options("worker", "sampling")
@click.command(cls=OptionCommand, context_settings=CONTEXT)
@_pool_options
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Configuration file to change to; without it, the current one is read again.",
)
@click.option("--golden", multiple=True, help="Prompt that new workers must answer; repeatable.")
@click.option(
    "--golden-answer",
    multiple=True,
    help="What the greedy answer to the --golden of the same place must begin with; without it the "
    "old worker's answer counts, if model and options are unchanged.",
)
@click.option(
    "--surge",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Start the new worker before the old one leaves; auto: where memory allows it.",
)
@click.option("--only-changed", is_flag=True, help="Leave workers alone that have not changed.")
@click.option("--abort", is_flag=True, help="Stop the running rolling change, and roll it back.")
@click.option(
    "--wait", is_flag=True, help="Return when it is over; exit code 1 if it was rolled back."
)
def rollout(**values: Any) -> None:
    """Replace the workers of a running pool, one at a time, without losing a request.

    For a new model file, new options (those of `serve` for a worker), or a new version of
    llamapool. If a new worker does not start, answers a golden prompt differently or dies soon, the
    change is rolled back.
    """
    client = _client(values, timeout_s=3600.0)
    if values["abort"]:
        client.post("/admin/rollout/abort")
    else:
        client.post("/admin/rollout", **_order(values))
    if values["wait"] or values["abort"]:
        _follow(client)


def _order(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the request."""
    golden, answers = values["golden"], values["golden_answer"]
    if len(answers) > len(golden):
        raise click.UsageError("--golden-answer needs a --golden of the same place")
    config = values["config"]
    return {
        "config": str(absolute(config)) if config else "",
        "options": _options(values),
        "golden": [
            {"prompt": prompt, "answer": answers[i] if i < len(answers) else None}
            for i, prompt in enumerate(golden)
        ],
        "surge": values["surge"],
        "only_changed": values["only_changed"],
    }


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the command line alone, paths made absolute."""
    overrides = given(values, ("worker", "sampling")).on_command_line
    try:
        config = anchored(options.apply(PoolConfig(), overrides), working_directory())
    except ConfigError as error:
        raise ConfigRefused(str(error)) from None
    parts = {"worker": config.worker[0], "sampling": config.worker[0].sampling}
    fields = ((field, *field.split(".", 1)) for field in overrides)
    return {field: getattr(parts[section], name) for field, section, name in fields}


@click.command(context_settings=CONTEXT)
@_runtime_dir_option
def reload(runtime_dir: str) -> None:
    """Read the configuration of a pool on this host again, as SIGHUP does; see its log for errors.

    Gateways are replaced without a gap, and workers whose configuration has changed one at a time.
    """
    folder = Path(find_pool("", "", runtime_dir).path).parent
    try:
        pid = supervisor_pid(folder)
        os.kill(pid, signal.SIGHUP)
    except FileNotFoundError:
        raise AdminError(
            f"the pool in {folder} has no supervisor: restart its gateway and its workers instead"
        ) from None
    except OSError as error:
        raise NoPoolError(f"cannot signal the supervisor: {error.strerror}") from None
    click.echo(f"process {pid} reads its configuration again")


def _follow(client: AdminClient) -> None:
    """Print each step until the rolling change is over; exit code 1 if it failed."""
    shown = ""
    while True:
        try:
            found = client.get("/admin/rollout")
        except NoPoolError:
            time.sleep(_POLL_S)  # the gateway is being replaced, too
            continue
        line = rollout_line(found)
        if line != shown:
            shown = line
            click.echo(line)
        if found["state"] in ("done", "failed", "none"):
            raise SystemExit(EXIT_ERROR if found["state"] == "failed" else 0)
        time.sleep(_POLL_S)
