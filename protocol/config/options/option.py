"""What an option is, and how the text of its argument becomes a value.

One row says how a field of our configuration is spelled on the command line and in the environment;
type, limits and text come from the field itself. The other files of this folder have the rows.
"""

import json
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from protocol.config.config import GatewayConfig, LogConfig, WorkerConfig
from protocol.errors import ConfigError, InvalidRequest
from protocol.process.named_file import read_named_text
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
    """The text that the flag stands for, if its argument may be left out."""
    also: str = ""
    """Another field that gets the same value."""
    sets: tuple[tuple[str, Any], ...] = ()
    """Further fields and what they get with it."""
    doc: str = ""
    """What the flag does, where the text of its field does not tell that."""
    joined: str = ""
    """What stands between two values that llama.cpp of 2024 took as two arguments."""
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
        """Return the value that holds unless the option is given; empty where its text says it."""
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
        """Tell whether the option takes no argument."""
        is_boolean = self.row.kind in (bool, bool | None) and self.parse is None
        return self.value is not None or is_boolean

    @property
    def repeats(self) -> bool:
        """Tell whether the option may be given several times, each adding to the field."""
        return typing.get_origin(self.row.kind) is tuple and self.field not in _REPLACING

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
    """Another program's; one warning names all of them that were given."""
    is_refused: bool = False
    """Starting would not give what was asked for: it ends with `why`."""
    harmless: tuple[str, ...] = ()
    """Texts that ask for nothing: neither refused nor warned about. `*` is any."""

    def is_harmless(self, text: str) -> bool:
        """Tell whether this use of the option passes without a word."""
        return "*" in self.harmless or text in self.harmless


def unused(flags: str, why: str, n_values: int = 0, *, env: str = "", **extra: Any) -> Unused:
    """Make a row of an option that sets nothing."""
    names = tuple(flags.split())
    return Unused(flags=names, why=why, n_values=n_values, env=variable(names, env), **extra)


# ---- texts ------------------------------------------------------------------------------------


def read_text(option: Option, text: str, key: str, *, escapes: bool = True) -> Any:
    """Turn the text of an argument into the field's value.

    Raises `InvalidRequest` that names `key`; `ConfigError` if the file is wrong that it names.
    """
    if option.escapes and escapes:
        text = unescape(text)
    try:
        value = option.parse(text) if option.parse else _by_kind(option.row.kind, text)
    except _FileError as error:
        raise ConfigError(f"{key}: {error}") from error
    except ValueError as error:
        reason = str(error)
        if "could not convert" in reason or "invalid literal" in reason:
            reason = f"must be a number, but got '{text}'"
        raise InvalidRequest(f"{key}: {reason}", param=key) from error
    return check(option.row, value, key)


def _by_kind(kind: Any, text: str) -> Any:
    if kind in (bool, bool | None):
        return read_boolean(text)
    if kind in (int, float):
        return kind(text)
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def read_layers(text: str) -> int:
    """Read a number of layers; auto, all and anything below 0 are every layer."""
    return -1 if text in ("auto", "all") else max(-1, int(text))


def read_flash(text: str) -> str:
    """Read on, off and auto with llama-server's synonyms of a boolean."""
    return "auto" if text in ("auto", "-1") else ("on" if read_boolean(text) else "off")


def read_margins(text: str) -> tuple[int, ...]:
    """Read numbers separated by commas or slashes."""
    return tuple(int(part) for part in re.split("[,/]", text))


def read_object(text: str) -> str:
    """Read a JSON object, as text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return text


def read_effort(text: str) -> str:
    """Read a level of effort; default is the template's own."""
    return "" if text == "default" else text


def read_poll(text: str) -> int:
    """Read 0 or 1 as never and as long as is usual, anything else as it is."""
    return _POLLING if text == "1" else int(text)


def read_shares(text: str) -> tuple[float, ...]:
    """Read numbers separated by commas or slashes."""
    return tuple(float(part) for part in re.split("[,/]", text))


def read_range(text: str) -> tuple[int, ...]:
    """Read a first and a last number."""
    numbers = tuple(int(part) for part in text.split(","))
    if len(numbers) != 2:
        raise ValueError("must be two numbers, START END")
    return numbers


def read_freq_scale(text: str) -> float:
    """Read a factor of the context as the scale of frequencies."""
    factor = float(text)
    if factor <= 0:
        raise ValueError("must be greater than 0")
    return 1 / factor


def read_predict(text: str) -> int:
    """Read a number of tokens; -2, until the context is full, is what every -1 means."""
    return -1 if text == "-2" else int(text)


def read_interval(text: str) -> float:
    """Read seconds; -1 and 0 are never, which is a day here."""
    return 86400.0 if float(text) <= 0 else float(text)


def read_newlines(text: str) -> str:
    r"""Read a text in which \n stands for a newline, as api_like_OAI.py reads it."""
    return text.replace("\\n", "\n")


def read_names(text: str) -> tuple[str, ...]:
    """Read names separated by semicolons."""
    return tuple(filter(None, (part.strip() for part in text.split(";"))))


def read_one(text: str) -> tuple[str, ...]:
    """Read the whole text as one item."""
    return (text,)


def read_breakers(text: str) -> tuple[str, ...]:
    """Read one sequence breaker; none is an empty one, which nothing ever matches."""
    return ("" if text == "none" else text,)


def read_bias(text: str) -> tuple[tuple[int | str, float], ...]:
    """Read TOKEN_ID(+/-)BIAS."""
    match = re.fullmatch(r"(.+?)([+-](?:inf|\d+(?:\.\d*)?))", text, re.DOTALL)
    if match is None or match[2] == "+inf":
        raise ValueError("must be TOKEN_ID(+/-)BIAS as in 15043-1 or 15043-inf")
    token = int(match[1]) if match[1].isdigit() else match[1]
    return ((token, float(match[2])),)


class _FileError(ValueError):
    """The file that an argument names cannot be used; the command line itself is valid."""


def read_file(text: str) -> str:
    """Read the file of that name."""
    try:
        return read_named_text(Path(text))
    except OSError as error:
        raise _FileError(f"cannot read {text}: {error.strerror}") from error


def read_object_file(text: str) -> str:
    """Read the file of that name, a JSON object."""
    content = read_file(text)
    try:
        return read_object(content)
    except ValueError as error:
        raise _FileError(f"{text}: {error}") from error


def read_boolean(text: str) -> bool:
    """Read a boolean in any of llama-server's spellings."""
    lowered = text.lower()
    if lowered in ("1", "true", "on", "yes", "enabled"):
        return True
    if lowered in ("0", "false", "off", "no", "disabled"):
        return False
    raise ValueError("must be one of on, off, true, false, 1, 0")


_POLLING = 50
"""llama.cpp's own polling level."""
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


def unescape(text: str) -> str:
    r"""Replace \n, \r, \t, \', \", \\ and \xHH, as llama-server does with stops and breakers."""

    def replaced(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _ESCAPES[match[2]]

    return re.sub(r"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))", replaced, text)
