"""Log calls of all processes: a constant event, and values only as fields of one vocabulary."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from gateway.pool.requests.record import RequestRecord, summary
from protocol.process.logs import RECORD_ATTRIBUTES

_ROOT = Path(__file__).parent.parent
_PAGE = "docs/running/logs.md"
_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}

_TABLES: dict[str, list[str]] = {
    "row": list(summary(RequestRecord(1, "id", "GET", "/", 0.0))),
    "facts": ["child", "cause", "retry_s", "pid"],
}
"""Keys of dicts that a call takes whole, by the names that they have there."""


@cache
def _fields() -> set[str]:
    """Return the field names of the page's table."""
    table = (_ROOT / _PAGE).read_text().partition("## Fields\n")[2]
    names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert len(names) == len(set(names)) > 0
    return set(names)


def _log_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=name)) if (
                name in _METHODS
            ):
                yield node


@cache
def _calls() -> list[tuple[str, ast.Call]]:
    files = (
        path for room in ("gateway", "worker", "protocol") for path in (_ROOT / room).rglob("*.py")
    )
    return [
        (f"{path.relative_to(_ROOT)}:{call.lineno}", call)
        for path in sorted(files)
        if "logger." in (text := path.read_text())
        for call in _log_calls(ast.parse(text))
    ]


def _keys(call: ast.Call) -> list[str]:
    """Return the keys of `extra`: a dict literal with constant keys, or one of `_TABLES`."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "extra" not in given:
        return []
    extra = given["extra"]
    assert isinstance(extra, ast.Dict), "extra is a dict literal"
    keys: list[str] = []
    for key, value in zip(extra.keys, extra.values, strict=True):
        keys += [ast.literal_eval(key)] if key is not None else _TABLES[ast.unparse(value)]
    return keys


def _fault(call: ast.Call) -> str:
    """Return what is wrong with a call; empty if nothing is."""
    assert isinstance(call.func, ast.Attribute)
    event, *rest = call.args[1:] if call.func.attr == "log" else call.args
    if not (isinstance(event, ast.Constant) and isinstance(event.value, str)):
        return "the event is a constant string"
    if rest or "%" in event.value or "=" in event.value:
        return "use extra"
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "extra" in given and not isinstance(given["extra"], ast.Dict):
        return "extra is a dict literal"
    unknown = set(_keys(call)) - _fields()
    return f"not in {_PAGE}: {unknown}" if unknown else ""


def test_there_are_log_calls() -> None:
    assert len(_calls()) > 50


def test_each_call_names_an_event_and_gives_values_as_fields() -> None:
    assert [f"{place}: {fault}" for place, call in _calls() if (fault := _fault(call))] == []


def test_every_field_is_used_and_has_a_name_of_its_own() -> None:
    used = {key for _, call in _calls() for key in _keys(call)}
    assert used == _fields()
    assert not RECORD_ATTRIBUTES & _fields()
    assert not {"level", "logger", "time", "event", "exception"} & _fields()


def test_warnings_and_errors_tell_what_follows() -> None:
    """Each gives what the program does next or what the reader can do; a cause alone does not."""
    silent = [
        place
        for place, call in _calls()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("warning", "error", "exception", "critical")
        and not {"action", "hint", "line"} & set(_keys(call))
    ]
    assert silent == []
