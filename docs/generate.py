"""Write the tables of the documents from the tables of the code.

`python docs/generate.py` writes them; `--check` only says whether they are current.
"""

import dataclasses
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gateway.api.fields.bounds import DESCRIPTIONS
from gateway.api.fields.tables import BODIES, HEADERS, PATHS, QUERIES
from protocol.config.config import GatewayConfig, LogConfig, PoolConfig, WorkerConfig
from protocol.config.limits import LimitsConfig
from protocol.config.options.option import Unused
from protocol.config.options.table import OPTIONS
from protocol.config.options.unused import FOREIGN, IDLE, REFUSED
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import FieldRow, describe, shape_of
from protocol.wire.shapes import FieldShape, leaves

DOCS = Path(__file__).parent

NOTE = "<!-- written by docs/generate.py; change the table in the code instead -->\n"


def sampling() -> str:
    """Every request field of `protocol/wire/sampling.py`."""
    lines = [
        "# Sampling and generation fields\n",
        NOTE,
        "The fields of a request body, in llama-server's names. Unset and `null` take the default;"
        " a wrong type or a value out of range is a 400 that names the field; where llama-server"
        " clamps a number, skips an entry or cuts a fraction off, so does this server. The default"
        " column"
        " can be changed for a model in its `[worker.sampling]` table. Where `backend_sampling` is"
        " honoured, and what it costs: [backend-sampling](backend-sampling.md).\n",
        "| field | also | type | default | limits | meaning |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_sampling_line(row) for row in describe(SamplingParams))]) + "\n"


def configuration() -> str:
    """Every key of the configuration file."""
    lines = [
        "# Configuration file\n",
        NOTE,
        "TOML (or JSON). An unknown key is an error that names its path."
        " Without such a file llama.cpp's own `/etc/llama.cpp/config.ini` and"
        " `~/.config/llama.cpp/config.ini` are read."
        " Relative paths in a file are relative to its folder; those of the command line and the"
        " environment are relative to the working directory.\n",
    ]
    sections: tuple[tuple[str, type], ...] = (
        ("Top level", PoolConfig),
        ("`[gateway]`", GatewayConfig),
        ("`[gateway.limits]`", LimitsConfig),
        ("`[[worker]]`", WorkerConfig),
        ("`[log]`", LogConfig),
    )
    for title, cls in sections:
        lines += [
            f"## {title}\n",
            "| key | type | default | limits | meaning |",
            "|---|---|---|---|---|",
        ]
        lines += [_config_line(row) for row in describe(cls)]
        lines.append("")
    return "\n".join(lines)


def options() -> str:
    """Every flag of `llamapool serve` and its environment name."""
    lines = [
        "# Command-line options of `llamapool serve`\n",
        NOTE,
        "llama-server's names; underscores may stand for dashes. A flag beats its environment"
        " variable, which beats the configuration file, which beats the default.\n",
        "| option | environment | sets | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for option in OPTIONS:
        flags = ", ".join(f"`{flag}`" for flag in (*option.flags, *option.off))
        env = f"`{option.env}`" if option.env else ""
        default = _value(option.row.default) if option.value is None else ""
        text = _cell(option.text)
        lines.append(f"| {flags} | {env} | `{option.field}` | {default} | {text} |")
    lines += _unused("Without effect", "Taken; a warning says why where it matters.", IDLE)
    lines += _unused("Refused", "What was asked could not be given: the start ends.", REFUSED)
    lines += _unused("Of other programs", "Taken; one warning names all that were given.", FOREIGN)
    return "\n".join(lines) + "\n"


def _unused(title: str, text: str, rows: Iterable[Unused]) -> list[str]:
    lines = [f"\n## {title}\n", f"{text}\n", "| option | environment | why |", "|---|---|---|"]
    for row in rows:
        flags = ", ".join(f"`{flag}`" for flag in row.flags)
        lines.append(f"| {flags} | `{row.env}` | {_cell(row.why)} |")
    return lines


def compatibility() -> str:
    """What works of the surface that clients know, from `docs/using/compatibility.toml`."""
    sys.path.append(str(DOCS.parent))  # the tests are not installed
    from tests.parity.report import compared

    table = tomllib.loads((DOCS / "using" / "compatibility.toml").read_text(encoding="utf-8"))
    counts = Counter(row[0] for rows in table.values() for row in rows.values())
    total = ", ".join(f"{n} {state}" for state, n in counts.most_common())
    lines = [
        "# Compatibility\n",
        "<!-- written by docs/generate.py from docs/using/compatibility.toml -->\n",
        "What of the surface of llama-server (2023 to today), api_like_OAI.py, OpenAI and Anthropic"
        " works here, and the test that proves it. *Ignored* is taken without effect, with a"
        " warning where it matters; *refused* is a clear error; *missing* is not there yet.\n",
        f"{sum(counts.values())} rows: {total}.",
    ]
    for title, rows in table.items():
        lines += [f"\n## {title}\n", "| what | state | note | test |", "|---|---|---|---|"]
        for name, (state, test, note) in rows.items():
            proof = f"`{test}`" if test else ""
            lines.append(f"| `{_cell(name)}` | {state} | {_cell(note)} | {proof} |")
    return "\n".join([*lines, *compared()]) + "\n"


def operations() -> str:
    """The page of operations as it is, with its table of limits written anew."""
    text = (DOCS / "running" / "operations.md").read_text(encoding="utf-8")
    begin, end = "<!-- limits: written by docs/generate.py -->\n", "<!-- end of limits -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    keys = ("max_body_mib", "timeout_s", "queue_size", "queue_timeout_s", "drain_timeout_s")
    rows = [row for row in describe(GatewayConfig) if row.name in keys]
    lines = [f"| `[gateway]` {_config_line(row)[2:]}" for row in rows]
    lines += [f"| `[gateway.limits]` {_config_line(row)[2:]}" for row in describe(LimitsConfig)]
    head = ["| key | type | default | bounds | limits what |", "|---|---|---|---|---|"]
    keys_text = "\n".join([*head, *lines])
    return before + begin + keys_text + "\n\n" + _fields_text() + "\n" + end + after


def _fields_text() -> str:
    """Every field of every body with its bound, those of sampling excepted."""
    found: dict[tuple[str, str], list[str]] = {}
    tables = {kind: body.fields for kind, body in BODIES.items()}
    tables |= {"headers": HEADERS, "queries": QUERIES, "paths": PATHS}
    written: dict[int, str] = {}
    for kind, table in tables.items():
        for name, shape in table.items():
            for row in _bounds_in(shape, name or "(body)", written):
                found.setdefault(row, []).append(kind)
    lines = ["| name | stands for |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in DESCRIPTIONS.items()]
    lines += [
        "",
        "Fields of requests; those of sampling are in [sampling](../using/sampling.md).",
        "",
    ]
    lines += ["| field | at most | of |", "|---|---|---|"]
    lines += [
        f"| `{field}` | {bound} | {_kinds(kinds)} |" for (field, bound), kinds in found.items()
    ]
    return "\n".join(lines)


def _bounds_in(shape: FieldShape, path: str, written: dict[int, str]) -> Iterator[tuple[str, str]]:
    """List the bounds of a field; a structure that stands under another name is only named."""
    inner = list(shape.inner())
    first = written.setdefault(id(shape), path) if len(inner) > 1 or inner else path
    if first != path:
        yield path, f"as `{first}`"
        return
    if bound := shape.describe():
        yield path, bound
    for part, one in inner:
        yield from _bounds_in(one, f"{path}{part}", written)


_GROUPS = {
    "all that generate": {kind for kind, body in BODIES.items() if body.has_sampling},
    "all chats": {"ChatCompletion", "Response", "Message"},
}


def _kinds(kinds: list[str]) -> str:
    rest, named = set(kinds), []
    for name, group in _GROUPS.items():
        if group <= rest:
            rest, named = rest - group, [*named, name]
    return ", ".join([*named, *(kind for kind in kinds if kind in rest)])


PAGES: dict[str, Callable[[], str]] = {
    "using/sampling.md": sampling,
    "running/configuration.md": configuration,
    "using/options.md": options,
    "using/compatibility.md": compatibility,
    "running/operations.md": operations,
}


def stale() -> list[str]:
    """Name the pages that differ from what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != page()
    ]


def _sampling_line(row: FieldRow) -> str:
    also = ", ".join(f"`{alias}`" for alias in row.spec.aliases)
    return (
        f"| `{row.name}` | {also} | {_kind(row.kind)} | {_value(row.default)} |"
        f" {_request_limits(row)} | {_cell(row.spec.doc)} |"
    )


def _config_line(row: FieldRow) -> str:
    return (
        f"| `{row.name}` | {_kind(row.kind)} | {_value(row.default)} | {_limits(row)} |"
        f" {_cell(row.spec.doc)} |"
    )


def _kind(kind: Any) -> str:
    if dataclasses.is_dataclass(kind):
        return "table"
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    if "Config" in name:
        return "list of tables"
    for python, word in (("tuple[", "list["), (", ...]", "]"), (" | None", "")):
        name = name.replace(python, word)
    return _cell(name)


def _value(value: Any) -> str:
    if dataclasses.is_dataclass(value) or value is None:
        return ""
    if isinstance(value, tuple):
        value = list(value)
    return f"`{_cell(json.dumps(value))}`"


def _request_limits(row: FieldRow) -> str:
    if row.spec.choices:
        return _limits(row)
    return "; ".join(f"{path}: {bound}" if path else bound for path, bound in leaves(shape_of(row)))


def _limits(row: FieldRow) -> str:
    spec = row.spec
    assert not isinstance(spec.low, str) and not isinstance(spec.high, str), row.name
    if spec.choices:
        return ", ".join(f"`{choice}`" if choice else "(empty)" for choice in spec.choices)
    low = "" if spec.low == float("-inf") else f"≥ {spec.low:g}"
    high = "" if spec.high == float("inf") else f"≤ {spec.high:g}"
    return ", ".join(part for part in (low, high) if part)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> int:
    """Write the pages, or only check them."""
    if "--check" in sys.argv:
        names = stale()
        sys.stderr.write("".join(f"docs/{name} is stale\n" for name in names))
        return 1 if names else 0
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
