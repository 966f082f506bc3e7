"""`llamapool key`: adds, lists and revokes the keys of a key file."""

import datetime as dt
import json
import math
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway.keys import edit
from gateway.keys.api_key import ApiKey, KeyLimits, KeyScope, PriorityClass, digest
from gateway.keys.parse import KeyFileError, expires_at, is_name, parse_keys
from protocol.errors import EXIT_ERROR
from protocol.named_file import read_named_text

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_KEY_BYTES = 32
"""Random bytes of a new key: 256 bits cannot be guessed."""
_UNITS_S = {"h": 3600, "d": 86_400, "w": 7 * 86_400}

Command = TypeVar("Command", bound=Callable[..., Any])

_file_option = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    envvar="LLAMAPOOL_KEYS",
    help="The key file, which `--api-key-file` names too. [env: LLAMAPOOL_KEYS]",
)
_COUNT = click.IntRange(min=0)


@click.group(context_settings=_CONTEXT)
def key() -> None:
    """Add, list and revoke API keys. A running gateway notices by itself."""


@key.command(context_settings=_CONTEXT)
@click.argument("name")
@_file_option
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([str(scope) for scope in KeyScope]),
    help="What the key may do; may be repeated. [default: infer]",
)
@click.option("--model", "models", multiple=True, help="Model that it may use; may be repeated.")
@click.option(
    "--priority",
    type=click.Choice([priority.name.lower() for priority in PriorityClass]),
    default="normal",
    show_default=True,
    help="Whose waiting requests go first.",
)
@click.option(
    "--concurrent", type=_COUNT, default=0, help="Answers at the same time; further ones wait."
)
@click.option("--requests-per-minute", type=_COUNT, default=0, help="0: no limit. Beyond it: 429.")
@click.option("--tokens-per-minute", type=_COUNT, default=0, help="0: no limit. Beyond it: 429.")
@click.option("--tokens-per-day", type=_COUNT, default=0, help="The same, by day in UTC.")
@click.option(
    "--expires", default="", help="A date such as 2027-01-31, or a time from now: 12h, 30d, 4w."
)
def add(  # noqa: PLR0913 - one parameter for each field of a key
    name: str,
    path: Path,
    *,
    scopes: Sequence[str],
    models: Sequence[str],
    priority: str,
    concurrent: int,
    requests_per_minute: int,
    tokens_per_minute: int,
    tokens_per_day: int,
    expires: str,
) -> None:
    """Make a key, store its digest under NAME, and print the key, once."""
    if not is_name(name):
        raise click.BadParameter("1 to 64 letters, digits or . _ @ + -", param_hint="NAME")
    if any(not model.isprintable() for model in models):
        raise click.BadParameter("must have printable characters only", param_hint="--model")
    secret = f"sk-{secrets.token_urlsafe(_KEY_BYTES)}"
    limits = KeyLimits(
        priority=PriorityClass[priority.upper()],
        concurrent=concurrent,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        tokens_per_day=tokens_per_day,
    )
    record = ApiKey(
        name=name,
        digests=(digest(secret),),
        scopes=frozenset(map(KeyScope, scopes or ("infer",))),
        models=tuple(models),
        limits=limits,
        expires_at=_moment(expires),
    )
    _change(path, lambda text: edit.with_key(text, record))
    click.echo(secret)
    click.echo(f"The key '{name}' is in {path} as its digest. It is not shown again.", err=True)


@key.command("list", context_settings=_CONTEXT)
@_file_option
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def list_keys(path: Path, *, is_json: bool) -> None:
    """List the names of the keys and what each may do. The file has no keys, only digests."""
    try:
        keys = parse_keys(read_named_text(path))
    except (OSError, KeyFileError) as error:
        raise _refuse(path, error) from None
    rows = [_shown(api_key) for api_key in keys]
    click.echo(json.dumps(rows, indent=1) if is_json else _table(rows))


@key.command(context_settings=_CONTEXT)
@click.argument("name")
@_file_option
def revoke(name: str, path: Path) -> None:
    """Remove the key NAME from the file. Requests that run with it are finished."""
    _change(path, lambda text: edit.without_key(text, name))
    click.echo(f"The key '{name}' is revoked.", err=True)


def _change(path: Path, change: Callable[[str], str]) -> None:
    try:
        with edit.locked(path):
            edit.write(path, change(edit.read_text(path)))
    except (OSError, KeyFileError) as error:
        raise _refuse(path, error) from None


def _refuse(path: Path, error: Exception) -> SystemExit:
    cause = error.strerror if isinstance(error, OSError) else error
    click.echo(f"llamapool: {path}: {cause}", err=True)
    return SystemExit(EXIT_ERROR)


def _moment(text: str) -> float:
    if not text:
        return math.inf
    if found := re.fullmatch(r"([0-9]{1,5})([hdw])", text):
        return float(int(time.time()) + int(found[1]) * _UNITS_S[found[2]])
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is neither a date such as 2027-01-31 nor a time such as 12h, 30d, 4w"
        raise click.BadParameter(message, param_hint="--expires") from error
    try:
        return expires_at(moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--expires") from error


def _shown(api_key: ApiKey) -> dict[str, Any]:
    limits = api_key.limits
    is_over = api_key.expires_at <= time.time()
    until = (
        dt.datetime.fromtimestamp(api_key.expires_at, dt.UTC)
        if api_key.expires_at < math.inf
        else None
    )
    return {
        "name": api_key.name,
        "sha256": api_key.digests[0].hex()[:12],
        "scopes": sorted(api_key.scopes),
        "models": list(api_key.models),
        "priority": limits.priority.name.lower(),
        "concurrent": limits.concurrent,
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "tokens_per_day": limits.tokens_per_day,
        "expires": until.isoformat(" ", "minutes")[:16] if until else None,
        "state": "expired" if is_over else "valid",
    }


_COLUMNS = {
    "name": "NAME",
    "scopes": "SCOPES",
    "models": "MODELS",
    "priority": "PRIORITY",
    "concurrent": "AT ONCE",
    "requests_per_minute": "REQ/MIN",
    "tokens_per_minute": "TOK/MIN",
    "tokens_per_day": "TOK/DAY",
    "expires": "EXPIRES",
    "state": "STATE",
}


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [list(_COLUMNS.values())]
    cells += [[_cell(row[name]) for name in _COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value) or "all"
    return "-" if value in (0, None) else str(value)
