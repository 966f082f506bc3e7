"""Converts a section of a preset file to settings of the configuration, and back. Pure.

Keys are llama-server's options without their dashes, or their environment names. Options
of the gateway have no effect, because a model cannot have its own, and are warned about; those that
keep clients out are refused. llama-server's router ignores its own options (address, keys, sources
of models) in sections, and so does this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from protocol.config.options.argument_readers import read_boolean
from protocol.config.options.table import OPTIONS, UNUSED, Option, Unused, not_used, read_text
from protocol.errors import ConfigError, InvalidRequest

DEFAULT_STOP_S = 10.0
"""Seconds that running tasks have when their model is unloaded; llama-server's."""

_DROPPED = frozenset(
    f"gateway.{name}"
    for name in (
        *("host", "port", "ssl_key_file", "ssl_cert_file", "api_key", "api_key_file"),
        *("models_dir", "models_preset", "models_max", "models_autoload", "models_cache"),
        "models_on_demand",
    )
)
_GUARDS = frozenset(
    f"gateway.{name}"
    for name in (
        *("require_key", "allowed_hosts", "api_key_admin", "cache_isolation", "cors_origins"),
        *("cors_methods", "cors_headers", "cors_credentials", "trusted_proxies"),
    )
)
"""Options that keep clients out: a preset with one ends the start, because it would be ignored."""
_SECRET = frozenset({"worker.hf_token"})
_NOT_SHOWN = _SECRET | {"worker.alias", "worker.tags"}

Settings = Mapping[str, Any]
"""Field of the configuration, such as `worker.n_ctx`, to its value."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Content of a section."""

    settings: Settings = field(default_factory=dict)
    load_on_startup: bool | None = None
    stop_timeout_s: float | None = None
    hides_cached: bool | None = None
    """A model of the cache with the same file is not listed beside it."""
    warnings: tuple[str, ...] = ()

    def over(self, lower: "Preset") -> "Preset":
        """Merge two presets; this one takes precedence."""
        startup, stop_s = self.load_on_startup, self.stop_timeout_s
        hides = self.hides_cached
        return Preset(
            {**lower.settings, **self.settings},
            lower.load_on_startup if startup is None else startup,
            lower.stop_timeout_s if stop_s is None else stop_s,
            lower.hides_cached if hides is None else hides,
            (*lower.warnings, *self.warnings),
        )


class _Key(NamedTuple):
    option: Option
    is_negated: bool


def _keys() -> dict[str, _Key]:
    keys: dict[str, _Key] = {}
    for option in OPTIONS:
        for flag in option.flags:
            keys.setdefault(flag.lstrip("-"), _Key(option, False))
        for flag in option.off:
            keys.setdefault(flag.lstrip("-"), _Key(option, True))
        if option.env:
            keys.setdefault(option.env, _Key(option, False))
    return keys


_KEYS: Mapping[str, _Key] = _keys()
_UNUSED: Mapping[str, Unused] = {
    name: row for row in UNUSED for name in (*(flag.lstrip("-") for flag in row.flags), row.env)
}
_DEDUP = "dedup-cache-models"
_HARMLESS = ("version",)
"""Keys without effect: `version` is reserved."""


def read_preset(pairs: Mapping[str, str], *, place: str) -> Preset:
    """Read a section; raises `ConfigError` that names `place` and the key."""
    settings: dict[str, Any] = {}
    warnings: list[str] = []
    startup: bool | None = None
    stop_s: float | None = None
    hides: bool | None = None
    for key, text in pairs.items():
        try:
            if key == "load-on-startup":
                startup = read_boolean(text)
            elif key == "stop-timeout":
                stop_s = _seconds(text)
            elif key == _DEDUP:
                hides = read_boolean(text)
            elif key not in _HARMLESS:
                settings |= _setting(key, text, warnings)
        except (ValueError, InvalidRequest) as error:
            reason = error.message if isinstance(error, InvalidRequest) else f"{key}: {error}"
            raise ConfigError(f"{place}: {reason}") from error
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
    return Preset(settings, startup, stop_s, hides, tuple(f"{place}: {line}" for line in warnings))


def _seconds(text: str) -> float:
    if not text.isdigit():
        raise ValueError(f"must be a number of seconds, but got '{text}'")
    return float(text)


def _setting(key: str, text: str, warnings: list[str]) -> dict[str, Any]:
    found = _KEYS.get(key)
    if found is None:
        _pass_unused(key, text, warnings)
        return {}
    option = found.option
    if option.field in _DROPPED:
        return {}
    if option.section not in ("worker", "sampling"):
        if option.field in _GUARDS:
            raise ValueError(_WHOLE)
        warnings.append(f"{key} {_WHOLE}")
        return {}
    if option.is_switch:
        text = _boolean(key, text, is_negated=found.is_negated, warnings=warnings)
    elif line := not_used(option, text, key):
        warnings.append(line)
    return value_of(key, text) or {}


_WHOLE = "belongs to the whole server: give it as an option, not in a preset"


def _boolean(key: str, text: str, *, is_negated: bool, warnings: list[str]) -> str:
    """Return a boolean; as in llama-server any other word is yes, and no of a `no-` key."""
    try:
        read_boolean(text)
    except ValueError:
        word = "off" if is_negated else "on"
        warnings.append(f"{key}: '{text}' is no boolean, and counts as {word}")
        return word
    return text


def value_of(key: str, text: str) -> dict[str, Any] | None:
    """Return what a key sets, `{field: value}`; None if no option has that name."""
    found = _KEYS.get(key)
    if found is None:
        return None
    option, is_negated = found
    if not option.is_switch:
        return option.settings(read_text(option, text or option.bare, key))
    is_on = read_boolean(text) is not is_negated
    if option.value is not None and not is_on and not option.off:
        return {}
    return option.settings(is_on)


def _pass_unused(key: str, text: str, warnings: list[str]) -> None:
    row = _UNUSED.get(key)
    if row is None:
        raise ValueError("no such option")
    if row.is_harmless(text):
        return
    if row.is_refused:
        raise ValueError(row.why)
    warnings.append(f"{key} {row.why}")


# ---- back to options ----------------------------------------------------------------------------


def as_args(settings: Settings) -> tuple[str, ...]:
    """Write settings as a command line, without secrets."""
    args: list[str] = []
    for name in sorted(settings.keys() - _SECRET):
        option, value = _plainest(name), settings[name]
        if value is False:
            args += option.off[-1:]
        else:
            args += [option.flags[-1]] if value is True else [option.flags[-1], _text(value)]
    return tuple(args)


def as_section(name: str, settings: Settings) -> str:
    """Write settings as a section of a preset file."""
    lines = [f"[{name}]"]
    for field_name in sorted(settings.keys() - _NOT_SHOWN):
        key = _plainest(field_name).flags[-1].lstrip("-")
        lines.append(f"{key} = {_text(settings[field_name])}")
    return "\n".join([*lines, "", ""])


@cache
def _plainest(name: str) -> Option:
    """Return the option that takes a field's value unchanged, if there is one."""
    options = [option for option in OPTIONS if name in (option.field, option.also)]
    own = [option for option in options if option.field == name] or options
    return min(own, key=lambda option: (option.value is not None, option.parse is not None))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_text, value))
    return str(value)
