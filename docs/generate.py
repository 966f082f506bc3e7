"""Write the tables of the documents from the tables of the code.

`python docs/generate.py` writes them; `--check` only says whether they are current.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protocol.config import GatewayConfig, PoolConfig, WorkerConfig
from protocol.options import OPTIONS
from protocol.sampling import SamplingParams
from protocol.schema import Row, describe

DOCS = Path(__file__).parent

NOTE = "<!-- written by docs/generate.py; change the table in the code instead -->\n"


def sampling() -> str:
    """Every request field of `protocol/sampling.py`."""
    lines = [
        "# Sampling and generation fields\n",
        NOTE,
        "The fields of a request body, in llama-server's names. Unset and `null` take the default;"
        " a wrong type or a value out of range is a 400 that names the field. The default column"
        " can be changed for a model in its `[worker.sampling]` table.\n",
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
        " Relative paths of models are relative to the working directory.\n",
    ]
    sections: tuple[tuple[str, type], ...] = (
        ("Top level", PoolConfig),
        ("`[gateway]`", GatewayConfig),
        ("`[[worker]]`", WorkerConfig),
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
        "| option | environment | sets | meaning |",
        "|---|---|---|---|",
    ]
    for option in OPTIONS:
        flags = ", ".join(f"`{flag}`" for flag in (*option.flags, *option.off))
        env = f"`{option.env}`" if option.env else ""
        lines.append(f"| {flags} | {env} | `{option.field}` | {_cell(option.row.spec.doc)} |")
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "sampling.md": sampling,
    "configuration.md": configuration,
    "options.md": options,
}


def stale() -> list[str]:
    """Name the pages that differ from what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != page()
    ]


def _sampling_line(row: Row) -> str:
    also = ", ".join(f"`{alias}`" for alias in row.spec.aliases)
    return (
        f"| `{row.name}` | {also} | {_kind(row.kind)} | {_value(row.default)} | {_limits(row)} |"
        f" {_cell(row.spec.doc)} |"
    )


def _config_line(row: Row) -> str:
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


def _limits(row: Row) -> str:
    spec = row.spec
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
