"""Log calls of all processes: a constant event, and values only as fields of one vocabulary."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.process.log_fields import LOG_FIELDS
from protocol.process.logs import RECORD_ATTRIBUTES

_ROOT = Path(__file__).parent.parent
_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def _log_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=name)) if (
                name in _METHODS
            ):
                yield node


def _calls() -> list[tuple[str, ast.Call]]:
    files = (
        path for room in ("gateway", "worker", "protocol") for path in (_ROOT / room).rglob("*.py")
    )
    return [
        (f"{path.relative_to(_ROOT)}:{call.lineno}", call)
        for path in sorted(files)
        for call in _log_calls(ast.parse(path.read_text()))
    ]


CALLS = _calls()


def _keys(call: ast.Call) -> list[str]:
    """Return the keys of `extra`; a dict literal with constant keys is the only form allowed."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "extra" not in given:
        return []
    extra = given["extra"]
    assert isinstance(extra, ast.Dict), "extra is a dict literal"
    return [ast.literal_eval(key) for key in extra.keys if key is not None]


def test_there_are_log_calls() -> None:
    assert len(CALLS) > 50


@pytest.mark.parametrize(("place", "call"), CALLS, ids=[place for place, _ in CALLS])
def test_a_call_names_an_event_and_gives_values_as_fields(place: str, call: ast.Call) -> None:
    assert isinstance(call.func, ast.Attribute)
    event, *rest = call.args[1:] if call.func.attr == "log" else call.args
    assert isinstance(event, ast.Constant), f"{place}: the event is a constant string"
    assert isinstance(event.value, str)
    assert not rest and "%" not in event.value and "=" not in event.value, f"{place}: use extra"
    unknown = set(_keys(call)) - set(LOG_FIELDS)
    assert not unknown, f"{place}: not in protocol/process/log_fields.py: {unknown}"


def test_every_field_is_used_and_has_a_name_of_its_own() -> None:
    used = {key for _, call in CALLS for key in _keys(call)}
    assert used == set(LOG_FIELDS)
    assert not RECORD_ATTRIBUTES & set(LOG_FIELDS)
    assert not {"level", "logger", "time", "event", "exception"} & set(LOG_FIELDS)


def test_warnings_and_errors_tell_what_follows() -> None:
    """Each gives the cause, what the program does next, or what the reader can do."""
    silent = [
        place
        for place, call in CALLS
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("warning", "error", "critical")
        and not {"cause", "action", "hint", "line"} & set(_keys(call))
    ]
    assert silent == []
