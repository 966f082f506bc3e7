"""llama-server's options and environment names: the whole table, and how it sets a configuration.

The command line, the reader of `LLAMA_ARG_*` and the documents are made from this table. It knows
nothing of any command-line library. Names are those of llama.cpp's `common/arg.cpp`, with what
llama.cpp has dropped since 2023.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from protocol.config.config import PoolConfig, WorkerConfig
from protocol.config.options.argument_readers import read_boolean
from protocol.config.options.gateway import GATEWAY_OPTIONS
from protocol.config.options.option import SECTIONS, Option, Unused, not_used, read_text
from protocol.config.options.presets import PRESETS
from protocol.config.options.sampling import SAMPLING_OPTIONS
from protocol.config.options.speculation import SPECULATION_OPTIONS
from protocol.config.options.unused import UNUSED
from protocol.config.options.worker import WORKER_OPTIONS
from protocol.errors import ConfigError, InvalidRequest

__all__ = [
    "GROUPS",
    "OPTIONS",
    "SECTIONS",
    "UNUSED",
    "Option",
    "Unused",
    "apply",
    "from_environ",
    "named_in",
    "not_used",
    "not_used_in",
    "read_text",
    "unused_in",
]

OPTIONS: tuple[Option, ...] = (
    *PRESETS,  # first, so that other options take precedence over them
    *GATEWAY_OPTIONS,
    *WORKER_OPTIONS,
    *SPECULATION_OPTIONS,
    *SAMPLING_OPTIONS,
)

GROUPS: Mapping[str, tuple[Option, ...]] = {
    "Server, keys, models on demand, log": GATEWAY_OPTIONS,
    "Model, devices, slots, cache, chat": WORKER_OPTIONS,
    "Speculative decoding and self-extend": SPECULATION_OPTIONS,
    "Defaults of request fields": SAMPLING_OPTIONS,
    "Models with the options that suit them": PRESETS,
}
"""The options as `--help` and the documents show them, by title."""


def from_environ(environ: Mapping[str, str], sections: Iterable[str] = SECTIONS) -> dict[str, Any]:
    """Read the `LLAMA_ARG_*` variables into `{field: value}`; raises `ConfigError` naming one."""
    return {field: value for field, (value, _) in named_in(environ, sections).items()}


def named_in(
    environ: Mapping[str, str], sections: Iterable[str] = SECTIONS
) -> dict[str, tuple[Any, str]]:
    """Read the variables into `{field: (value, variable)}`; raises `ConfigError` naming one."""
    found: dict[str, tuple[Any, str]] = {}
    for option in OPTIONS:
        if not option.env or option.section not in sections:
            continue
        try:
            value, name = _in_environ(option, environ)
        except InvalidRequest as error:
            raise ConfigError(f"environment: {error.message}") from error
        if name:
            found |= {field: (setting, name) for field, setting in option.settings(value).items()}
    return found


def _in_environ(option: Option, environ: Mapping[str, str]) -> tuple[Any, str]:
    """Return an option's value and the variable that sets it; no variable is an empty name."""
    if text := environ.get(option.env, ""):
        if not option.is_switch:
            return read_text(option, text, option.env), option.env
        is_on = _is_on(option, text)
        sets = is_on or (is_on is False and (option.off or option.value is None))
        return (is_on, option.env) if sets else (None, "")
    negated = option.env.replace("_ARG_", "_ARG_NO_")
    if option.off and environ.get(negated) is not None:
        return False, negated
    return None, ""


_ONLY_ON = ("gateway.metrics",)
"""llama-server does not have the flags that turn these off, so their variables turn them on."""


def _is_on(option: Option, text: str) -> bool | None:
    """Read the variable of a switch; None if llama-server ignores the text."""
    try:
        return read_boolean(text)
    except ValueError as error:
        if not option.off or option.field in _ONLY_ON:
            return None
        raise InvalidRequest(f"{option.env}: {error}", param=option.env) from error


def not_used_in(
    environ: Mapping[str, str], settings: Mapping[str, tuple[Any, str]], sections: Iterable[str]
) -> list[str]:
    """Return a warning for each variable that is ignored, or sets something else than it says."""
    lines = []
    for option in OPTIONS:
        text = environ.get(option.env, "") if option.env and option.section in sections else ""
        if not text:
            continue
        if option.is_switch:
            if _is_on(option, text) is None:
                lines.append(f"{option.env} {text} is neither on nor off, and is ignored")
        elif settings[option.field][1] == option.env:
            lines.append(not_used(option, text, option.env))
    return list(filter(None, lines))


def unused_in(environ: Mapping[str, str]) -> list[tuple[Unused, str, str]]:
    """List the variables of options that set nothing: row, variable, text."""
    named = [(row, row.env, environ.get(row.env, "")) for row in UNUSED]
    return [entry for entry in named if entry[-1]]


_OF_ONE = ("worker.model", "worker.alias", "worker.count")


def apply(config: PoolConfig, changes: Mapping[str, Any]) -> PoolConfig:
    """Return the configuration with `{field: value}` set, worker fields in every worker."""
    for field in _OF_ONE:
        if field in changes and len(config.worker) > 1:
            flag = next(option.flags[-1] for option in OPTIONS if option.field == field)
            raise ConfigError(f"{flag} fits one [[worker]] table, but there are several: edit them")
    workers = config.worker or (WorkerConfig(),)
    part = {section: _of(section, changes) for section in SECTIONS}
    return replace(
        config,
        gateway=replace(config.gateway, **part["gateway"]),
        log=replace(config.log, **part["log"]),
        worker=tuple(
            replace(worker, sampling=replace(worker.sampling, **part["sampling"]), **part["worker"])
            for worker in workers
        ),
    )


def _of(section: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{section}."
    return {k.removeprefix(prefix): v for k, v in changes.items() if k.startswith(prefix)}
