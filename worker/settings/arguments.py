"""The options of a command, made from the table, and the values that were given.

`given` merges command line and environment: the value of each field and its source, and the options
that set nothing.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from protocol.config.options import table as options
from protocol.config.options.presets import PRESETS
from protocol.config.options.table import OPTIONS, UNUSED, Option, Unused
from protocol.errors import EXIT_CONFIG, ConfigError, InvalidRequest

logger = logging.getLogger("supervisor")

Command = TypeVar("Command", bound=click.Command)


def _normal(name: str) -> str:
    """Return a name as it is declared; llama-server has `--usage` for `--help`."""
    return "help" if name == "usage" else name.replace("_", "-")


CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": _normal,
    "max_content_width": 100,
}
"""click's settings of every command."""

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="LLAMAPOOL_CONFIG",
    help="TOML file of a pool; options take precedence over it. [env: LLAMAPOOL_CONFIG]",
)

_ESCAPE = "escape"
_WORDS = f"{__name__}.words"
_NOT_USED = f"{__name__}.not_used"


@dataclass(frozen=True, slots=True)
class ExplicitSettings:
    """Settings from command line and environment."""

    settings: Mapping[str, tuple[Any, str]]
    """Field to its value and the flag or variable that set it."""
    unused: Sequence[tuple[Unused, str, str]]
    """Options that set nothing: row, flag or variable, text."""
    not_used: Sequence[str] = ()
    """A warning for each value that is not used as llama-server would."""

    @property
    def changes(self) -> dict[str, Any]:
        """Return `{field: value}`."""
        return {field: value for field, (value, _) in self.settings.items()}

    @property
    def wants_tools(self) -> bool:
        """Return whether an option asks for tools."""
        return any(row.wants_tools and not row.is_harmless(text) for row, _, text in self.unused)

    @property
    def on_command_line(self) -> dict[str, Any]:
        """Return the changes that come from flags alone."""
        items = self.settings.items()
        return {field: value for field, (value, name) in items if name.startswith("-")}


class CommandFailed(click.ClickException):
    """Ends a command: click prints the reason and exits with `exit_code`."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the reason."""
        click.echo(f"llamapool: {self.message}", file, err=True)


class ConfigRefused(CommandFailed):
    """Ends a command because of a `ConfigError`."""

    exit_code = EXIT_CONFIG


class FieldType(click.ParamType[Any]):
    """Reads an argument as its field of the configuration."""

    def __init__(self, option: Option) -> None:
        self.name = option.metavar
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the field's value; a wrong file ends with code 78, all else as a usage error."""
        escapes = ctx.params.get(_ESCAPE) is not False if ctx is not None else True
        flag = self._option.flags[-1]
        try:
            read = options.read_text(self._option, value, flag, escapes=escapes)
            if ctx is not None:
                name = _as_given(self._option)
                ctx.meta[f"{_NOT_USED}{flag}"] = options.not_used(self._option, value, name)
            return read
        except InvalidRequest as error:
            said = error.message.removeprefix(f"Field '{flag}': ").removeprefix(f"{flag}: ")
            self.fail(said, param, ctx)  # click says which option it was
        except ConfigError as error:
            raise ConfigRefused(str(error)) from error


class OptionCommand(click.Command):
    """A command with the options of the table; one takes one argument, two, or none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Arrange such values before click counts them."""
        words = paired(args)
        ctx.meta[_WORDS] = tuple(word.partition("=")[0].replace("_", "-") for word in words)
        return super().parse_args(ctx, words)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then those of the table by group."""
        group_of = {id(option): title for title, rows in options.GROUPS.items() for option in rows}
        titles = {_name(index): group_of[id(option)] for index, option in enumerate(OPTIONS)}
        sections: dict[str, list[tuple[str, str]]] = {
            "Options": [],
            **{t: [] for t in options.GROUPS},
        }
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                sections[titles.get(param.name or "", "Options")].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def paired(args: Sequence[str]) -> list[str]:
    """Join two values that llama.cpp takes as one argument, and add those that were left out."""
    joined = {flag: option.joined for option in OPTIONS if option.joined for flag in option.flags}
    rows: tuple[Option | Unused, ...] = (*OPTIONS, *UNUSED)
    bare = {flag: row.bare for row in rows if row.bare for flag in row.flags}
    result: list[str] = []
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        result.append(word)
        name = word.replace("_", "-") if word.startswith("--") else word
        if name in bare:
            result.append(waiting.pop(0) if waiting and _is_value(waiting[0]) else bare[name])
        between = joined.get(name)
        if not between or len(waiting) < 2 or not _NUMBER.fullmatch(waiting[1]):
            continue
        if not _is_pair(waiting[0], between):
            result.append(waiting.pop(0) + between + waiting.pop(0))
    return result


_NUMBER = re.compile(r"[-+]?\d*\.?\d+")


def _is_value(text: str) -> bool:
    """Return whether a word that may be left out is there: `-1` is one, and no other `-word`."""
    return not text.startswith("-") or text == "-" or _NUMBER.fullmatch(text) is not None


def _is_pair(text: str, between: str) -> bool:
    """Return whether a text has both values: a number follows the separator."""
    return re.search(rf"{re.escape(between)}[-+]?\d*\.?\d+$", text) is not None


def _name(index: int) -> str:
    """Return the name of the parameter of a row of the table."""
    return f"option_{index}"


@cache
def _declared(index: int) -> click.Option:
    """Make the click option of one row, which all commands share."""
    option = OPTIONS[index]
    names = [_name(index), *option.flags]
    text = option.text + (f" [default: {option.default_text}]" if option.default_text else "")
    text += f" [env: {option.env}]" if option.env else ""
    if option.is_switch:
        if option.off:
            # click pairs them by position: the first contains the slash, the others are synonyms.
            n_pairs = min(len(option.flags), len(option.off))
            pairs = [f"{on}/{off}" for on, off in zip(option.flags, option.off, strict=False)]
            rest = [*option.flags[n_pairs:], *(f" /{off}" for off in option.off[n_pairs:])]
            names = [_name(index), *pairs, *rest]
        return click.Option(names, is_flag=True, default=None, help=text)
    extra: dict[str, Any] = {"multiple": True} if option.repeats else {"default": None}
    return click.Option(names, type=FieldType(option), help=text, **extra)


@cache
def _declared_unused(index: int) -> click.Option:
    row = UNUSED[index]
    names = [f"unused_{index}", *row.flags]
    if not row.n_values:
        return click.Option(names, is_flag=True, default=None, hidden=True)
    kind = click.STRING if row.low is None else click.IntRange(row.low)
    return click.Option(names, type=kind, default=None, hidden=True)


def _escape_option() -> click.Option:
    return click.Option(
        ["-e/--no-escape", "--escape", _ESCAPE],
        default=True,
        is_eager=True,  # parsed before the texts
        help=r"Replace \n, \t and other escapes in -r and --dry-sequence-breaker. [default: on]",
    )


def with_options(*sections: str) -> Callable[[Command], Command]:
    """Add the options of these sections to a command, and those that set nothing."""

    def decorate(command: Command) -> Command:
        command.params += [
            _escape_option(),
            *(
                _declared(index)
                for index, option in enumerate(OPTIONS)
                if option.section in sections
            ),
            *map(_declared_unused, range(len(UNUSED))),
        ]
        return command

    return decorate


def given(values: Mapping[str, Any], sections: Iterable[str]) -> ExplicitSettings:
    """Merge environment and command line; the command line takes precedence.

    Of options that exclude each other, the last one counts, as in llama-server.
    """
    settings = dict(options.named_in(os.environ, sections))
    places = {word: place for place, word in enumerate(_words())}
    for index, option in sorted(enumerate(OPTIONS), key=lambda row: _place(row[1], places)):
        value = values.get(_name(index))
        if value is None or (option.repeats and value == ()):
            continue  # left out
        if option.value is not None and not (value or option.off):
            continue
        if option.adds:
            value = option.adds.join(value)
        elif option.repeats and not option.is_switch:
            value = tuple(item for part in value for item in part)
        origin = option.off[0] if value is False and option.off else option.flags[-1]
        settings |= {field: (setting, origin) for field, setting in option.settings(value).items()}
        if option.field in _EXCLUDED:
            settings[_EXCLUDED[option.field]] = ("", origin)
    unused = [*options.unused_in(os.environ), *_unused(values)]
    not_used = [*options.not_used_in(os.environ, settings, sections), *_said()]
    not_used += _without_catalog(settings)
    origin = next((settings[field][1] for field in _OF_A_CATALOG if field in settings), "")
    if origin and "worker" in sections:
        settings["gateway.models_on_demand"] = (True, origin)
    return ExplicitSettings(settings, unused, not_used)


_EXCLUDED = {"worker.json_schema": "sampling.grammar", "sampling.grammar": "worker.json_schema"}


def _place(option: Option, places: Mapping[str, int]) -> int:
    """Return where on the command line an option stands last; -1 if it does not.

    Presets come first: all other options take precedence over them.
    """
    return -1 if option in PRESETS else max(places.get(flag, -1) for flag in option.flags)


_MODEL = ("worker.model", "worker.model_url", "worker.hf_repo")
_CATALOG = ("gateway.models_dir", "gateway.models_preset")
_OF_ONE_MODEL = ("worker.alias", "worker.mmproj", "worker.hf_file")
"""llama-server's router drops these."""
_OF_A_CATALOG = ("gateway.models_max", "gateway.models_autoload")
"""With one of these and without a model, llama-server is a router."""


def _without_catalog(settings: dict[str, tuple[Any, str]]) -> list[str]:
    """Remove the models on demand if there is a model, else what only one model can have.

    llama-server does the same, without a word. Returns warnings.
    """
    chosen = next((settings[field][1] for field in _MODEL if field in settings), "")
    if chosen:
        names = [settings.pop(field)[1] for field in _CATALOG if field in settings]
        return [f"{name} is not used, because {chosen} names the only model" for name in names]
    catalog = next((settings[field][1] for field in _CATALOG if field in settings), "")
    names = [settings.pop(field)[1] for field in _OF_ONE_MODEL if catalog and field in settings]
    more = "a section of --models-preset has it for one model"
    return [f"{name} is not used with {catalog}: {more}" for name in names]


def _said() -> list[str]:
    """Return the warnings about the values of the command line."""
    context = click.get_current_context(silent=True)
    found = context.meta.items() if context is not None else ()
    return [line for key, line in found if key.startswith(_NOT_USED) and line]


def _unused(values: Mapping[str, Any]) -> list[tuple[Unused, str, str]]:
    texts = ((row, values.get(f"unused_{index}")) for index, row in enumerate(UNUSED))
    return [(row, _as_given(row), str(text)) for row, text in texts if text is not None]


def _as_given(row: Option | Unused) -> str:
    """Return the name under which an option was given."""
    words = _words()
    return next((flag for flag in row.flags if flag in words), row.flags[-1])


def _words() -> Sequence[str]:
    """Return the words of the command line, a value after `=` left out."""
    context = click.get_current_context(silent=True)
    words: Sequence[str] = context.meta.get(_WORDS, ()) if context is not None else ()
    return words


def log_warnings(found: ExplicitSettings) -> None:
    """Log the options that have no effect; raises `ConfigError` for one that is refused."""
    for line in warnings(found.unused):
        logger.warning("option without effect", extra={"cause": line, "hint": "leave it out"})
    for line in found.not_used:
        logger.warning("value not used", extra={"cause": line, "hint": "give the one that is used"})


def warnings(found: Iterable[tuple[Unused, str, str]]) -> list[str]:
    """Return a warning for each option without effect; one line lists those of other programs.

    Raises `ConfigError` with the first option that asks for something unsupported.
    """
    foreign: list[str] = []
    lines: list[str] = []
    for row, name, text in found:
        if row.is_harmless(text):
            continue
        if row.is_refused:
            raise ConfigError(f"{name} {row.why}")
        if row.is_foreign:
            foreign.append(name)
        else:
            lines.append(f"{name} {row.why}")
    if foreign:
        lines.insert(0, f"without effect, options of other programs: {' '.join(foreign)}")
    return lines
