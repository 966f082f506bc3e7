"""`llamapool doctor`: the command line and the report."""

import contextlib
import dataclasses
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from protocol.config.config import PoolConfig
from protocol.config.options import table as options
from protocol.errors import ConfigError
from protocol.version import version
from worker.doctor.case import DoctorCase, DoctorOptions, opened
from worker.doctor.examine import examine
from worker.doctor.finding import Finding, Level, exit_code
from worker.settings.arguments import (
    CONTEXT,
    ExplicitSettings,
    OptionCommand,
    config_option,
    given,
    with_options,
)
from worker.settings.pool_config import read_pool_config
from worker.settings.seconds import Seconds
from worker.supervisor.runtime_directory import parent

_LAYERS = "worker.n_gpu_layers"
_MARKS = {Level.OK: "ok  ", Level.WARN: "WARN", Level.FAIL: "FAIL"}
_COLORS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@with_options(*options.SECTIONS)
@click.command(cls=OptionCommand, context_settings=CONTEXT)
@config_option
@click.option("--json", "as_json", is_flag=True, help="Write the report as JSON.")
@click.option(
    "--load/--no-load",
    default=None,
    help="Load the models and compute with them. [default: unless --config is given]",
)
@click.option(
    "--load-timeout",
    type=Seconds(),
    default=300.0,
    help="Longest time of loading one model, in seconds.",
)
def doctor(
    config: Path | None, as_json: bool, load: bool | None, load_timeout: float, **values: Any
) -> None:
    """Check whether this host can serve with these options of `serve`; print how to fix faults.

    Exits with 1 if something will not work.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # the findings say it all
    overrides, pool, fault = _read(config, values)
    loads = config is None if load is None else load
    with _folder() as folder:
        asked = DoctorOptions(
            loads=loads, limit_s=max(1.0, load_timeout), is_gpu_wanted=_wants_gpu(pool, overrides)
        )
        case = opened(pool, fault, folder, asked)
        findings = _report(case, as_json)
    sys.stdout.flush()
    sys.stderr.flush()
    # The thread of a hanging check must not keep the process alive.
    os._exit(exit_code(findings))


@contextlib.contextmanager
def _folder() -> Iterator[Path | None]:
    """Make a folder where `serve` makes its own; None if that is not possible."""
    with contextlib.ExitStack() as stack:
        folder = None
        with contextlib.suppress(OSError):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent())))
        yield folder


def _read(config: Path | None, values: dict[str, Any]) -> tuple[ExplicitSettings, PoolConfig, str]:
    """Read the configuration; an error is returned, not raised."""
    overrides = ExplicitSettings({}, ())
    try:
        overrides = given(values, options.SECTIONS)
        return overrides, read_pool_config(config, overrides), ""
    except ConfigError as error:
        return overrides, PoolConfig(), str(error)


def _wants_gpu(pool: PoolConfig, overrides: ExplicitSettings) -> bool:
    """Return whether a GPU was asked for explicitly; the default of all layers does not count."""
    has_layers = any(worker.n_gpu_layers > 0 or worker.devices for worker in pool.worker)
    return has_layers or (_LAYERS in overrides.changes and overrides.changes[_LAYERS] != 0)


def _report(case: DoctorCase, as_json: bool) -> list[Finding]:
    findings = []
    for finding in examine(case):
        findings.append(finding)
        if not as_json:
            click.echo(_line(finding))
    if as_json:
        click.echo(_json(findings))
    else:
        click.echo(_summary(findings))
    return findings


def _line(finding: Finding) -> str:
    mark = click.style(_MARKS[finding.level], fg=_COLORS[finding.level])
    remedy = f"\n{'':19}-> {finding.remedy}" if finding.remedy else ""
    return f"{mark} {finding.name:<13} {finding.text}{remedy}"


def _summary(findings: Iterable[Finding]) -> str:
    levels = [finding.level for finding in findings]
    n_warn, n_fail = levels.count(Level.WARN), levels.count(Level.FAIL)
    if not n_warn and not n_fail:
        return "Everything is well."
    verdict = "It will not work as it is." if n_fail else "It works, and could be better."
    return f"{n_fail} failed, {n_warn} to look at. {verdict}"


def _json(findings: list[Finding]) -> str:
    rows = [{**dataclasses.asdict(finding), "level": finding.level.value} for finding in findings]
    return json.dumps({"version": version(), "ok": not exit_code(findings), "checks": rows})
