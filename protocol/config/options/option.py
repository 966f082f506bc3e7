"""An option: a row with the spellings of a field of the configuration.

Type, limits and text come from the field itself. The other files of this folder have the rows;
`argument_readers` has the functions that turn texts into values.
"""

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from protocol.config.config import GatewayConfig, LogConfig, WorkerConfig
from protocol.config.options.argument_readers import NamedFileError, read_boolean, unescape
from protocol.config.options.out_of_range import OUT_OF_RANGE
from protocol.errors import ConfigError, InvalidRequest
from protocol.wire.sampling import UNSET_SEED, SamplingParams
from protocol.wire.schema import FieldRow, check, describe

SECTIONS: Mapping[str, type] = {
    "gateway": GatewayConfig,
    "worker": WorkerConfig,
    "sampling": SamplingParams,
    "log": LogConfig,
}
"""What the first half of an option's `field` stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row: how a field is spelled on the command line and in the environment."""

    field: str
    """`<section>.<name>`."""
    flags: tuple[str, ...]
    off: tuple[str, ...] = ()
    """Flags that set a boolean to false."""
    env: str = ""
    parse: Callable[[str], Any] | None = None
    """Turns the text into the field's value; raises ValueError. None is by the field's type."""
    value: Any = None
    """What the flag sets, if it takes no argument."""
    off_value: Any = False
    """What the flags in `off` set."""
    bare: str = ""
    """Text of the argument if it is left out; empty: it must be given."""
    also: str = ""
    """Another field that gets the same value."""
    sets: tuple[tuple[str, Any], ...] = ()
    """Further fields and what they get with it."""
    doc: str = ""
    """What the flag does, if the text of its field does not describe it."""
    joined: str = ""
    """Separator of two values that llama.cpp of 2024 took as two arguments."""
    adds: str = ""
    """Separator of the texts of an option that is given several times; empty: the last counts."""
    escapes: bool = False
    r"""Whether \n and the like in its text are replaced, unless --no-escape is given."""

    @property
    def row(self) -> FieldRow:
        """Return the declaration of the field."""
        return _row(self.field)

    @property
    def text(self) -> str:
        """Return what the flag does."""
        return self.doc or self.row.spec.doc

    def settings(self, value: Any) -> dict[str, Any]:
        """Return what the option sets, `{field: value}`; a switch gives whether it is on."""
        if value is False:
            return {self.field: self.off_value}
        value = value if self.value is None else self.value
        return dict.fromkeys(filter(None, (self.field, self.also)), value) | dict(self.sets)

    @property
    def metavar(self) -> str:
        """Return what stands for the argument in a help text: its choices, N, or TEXT."""
        if self.row.spec.choices:
            return "|".join(filter(None, self.row.spec.choices))
        return "N" if self.row.kind in (int, float) else "TEXT"

    @property
    def default_text(self) -> str:
        """Return the default value for the help; empty if the text names it."""
        value = self.row.default
        if self.value is not None or self.doc or value in ("", (), None):
            return ""
        if isinstance(value, bool):
            return "on" if value else "off"
        if value == UNSET_SEED:
            return "-1"  # as one would write it
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

    @property
    def is_switch(self) -> bool:
        """Return whether the option takes no argument."""
        is_boolean = self.row.kind in (bool, bool | None) and self.parse is None
        return self.value is not None or is_boolean

    @property
    def repeats(self) -> bool:
        """Return whether the option may be given several times, each adding to the field."""
        is_list = typing.get_origin(self.row.kind) is tuple and self.field not in _REPLACING
        return is_list or bool(self.adds)

    @property
    def section(self) -> str:
        """Return the section that the field belongs to."""
        return self.field.partition(".")[0]


_REPLACING = (
    *("worker.tensor_split", "worker.control_vector_layers", "worker.device", "worker.fit_target"),
    *("worker.device_draft", "sampling.samplers"),
)
"""Lists that one argument gives as a whole."""


@cache
def _row(field: str) -> FieldRow:
    section, _, name = field.partition(".")
    return next(row for row in describe(SECTIONS[section]) if row.name == name)


def option(field: str, flags: str, off: str = "", *, env: str = "", **extra: Any) -> Option:
    """Make a row. Its variable is `LLAMA_ARG_<env>`, by default from the first long flag."""
    names = tuple(flags.split())
    return Option(
        field=field, flags=names, off=tuple(off.split()), env=variable(names, env), **extra
    )


def variable(flags: tuple[str, ...], env: str = "") -> str:
    """Name the environment variable of an option."""
    if env.startswith(("LLAMA_", "HF_", "MTMD_")):
        return env
    long = next((flag for flag in flags if flag.startswith("--")), flags[-1]).lstrip("-")
    return f"LLAMA_ARG_{env or long.upper().replace('-', '_')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """An option that is known and sets nothing."""

    flags: tuple[str, ...]
    why: str
    n_values: int = 0
    bare: str = ""
    """As in `Option`."""
    env: str = ""
    is_foreign: bool = False
    """It belongs to another program; one warning lists all such options that were given."""
    is_refused: bool = False
    """It asks for something unsupported: the start ends with `why`."""
    wants_tools: bool = False
    """It asks for tools: as in llama-server, only pages of this host may read answers then."""
    low: int | None = None
    """Lowest of the whole numbers that it takes on a command line; None: any text."""
    harmless: tuple[str, ...] = ()
    """Texts that ask for nothing: neither refused nor warned about. `*` is any."""

    def is_harmless(self, text: str) -> bool:
        """Return whether this use of the option is neither refused nor warned about."""
        if not self.n_values and text.lower() in ("0", "false", "off", "disabled"):
            return True  # a variable, or a key of a preset
        return "*" in self.harmless or text in self.harmless


def unused(flags: str, why: str, n_values: int = 0, *, env: str = "", **extra: Any) -> Unused:
    """Make a row of an option that sets nothing."""
    names = tuple(flags.split())
    return Unused(flags=names, why=why, n_values=n_values, env=variable(names, env), **extra)


def read_text(option: Option, text: str, key: str, *, escapes: bool = True) -> Any:
    """Turn the text of an argument into the field's value.

    Raises `InvalidRequest` that names `key`; `ConfigError` if the file is wrong that it names.
    """
    if option.escapes and escapes:
        text = unescape(text)
    try:
        value = option.parse(text) if option.parse else _by_kind(option.row.kind, text)
    except NamedFileError as error:
        raise ConfigError(f"{key}: {error}") from error
    except ValueError as error:
        reason = str(error)
        if "could not convert" in reason or "invalid literal" in reason:
            reason = f"must be a number, but got '{text}'"
        raise InvalidRequest(f"{key}: {reason}", param=key) from error
    if beyond := OUT_OF_RANGE.get(option.field):
        value = beyond.used(value)
    return check(option.row, value, key)


def not_used(option: Option, text: str, key: str) -> str:
    """Return a warning if `read_text` gives something else than the text asks for; or nothing."""
    beyond = OUT_OF_RANGE.get(option.field)
    if option.value is not None or beyond is None:
        return ""
    why = beyond.reason(option.parse(text) if option.parse else _by_kind(option.row.kind, text))
    return f"{key} {text} {why}" if why else ""


def _by_kind(kind: Any, text: str) -> Any:
    if kind in (bool, bool | None):
        return read_boolean(text)
    if kind in (int, float):
        return kind(text)
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text
