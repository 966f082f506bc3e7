"""Write the tables of the documents from the tables of the code.

`python docs/generate.py` writes them; `--check` only says whether they are current.
"""

import dataclasses
import json
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gateway.api.fields.bounds import DESCRIPTIONS
from gateway.api.fields.endpoints import BODIES
from gateway.api.fields.tables import HEADERS, PATHS, QUERIES
from protocol.config.config import GatewayConfig, LogConfig, PoolConfig, WorkerConfig
from protocol.config.limits import LimitsConfig
from protocol.config.options.option import Option, Unused
from protocol.config.options.out_of_range import OUT_OF_RANGE
from protocol.config.options.table import GROUPS, OPTIONS
from protocol.config.options.unused import FOREIGN, REFUSED, WITHOUT_EFFECT
from protocol.config.rollout_config import GoldenConfig, RolloutConfig
from protocol.config.usage_config import UsageConfig
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import FieldRow, describe, shape_of
from protocol.wire.shapes import FLOAT32_MAX, INT32_MAX, FieldShape, leaves

DOCS = Path(__file__).parent

_WRAPPER = partial(textwrap.wrap, width=120, break_long_words=False, break_on_hyphens=False)

NOTE = "<!-- written by docs/generate.py: change the tables of the code, then run it -->\n"


def sampling() -> str:
    """Every request field of `protocol/wire/sampling.py`."""
    lines = [
        "# Sampling and generation fields\n",
        NOTE,
        "Fields that control how text is generated, in the body of `/completion`,"
        " `/v1/completions`, `/v1/chat/completions`, `/v1/responses`, `/v1/messages` and"
        " `/infill`. The names are those of llama-server; *also* lists further names.\n",
        "```sh\ncurl http://127.0.0.1:8080/completion \\\n"
        '    -d \'{"prompt": "Once", "n_predict": 16, "temperature": 0.2, "top_k": 20}\'\n```\n',
        "- A field that is left out or `null` has its default. A default can be changed with a"
        " [command-line option](options.md), or in the `[worker.sampling]` table of a model.\n"
        "- A wrong type or a value out of range is a 400 that names the field. *Clamped* values are"
        " moved to the nearest bound instead, as in llama-server.\n"
        "- `n_ctx` among the limits is the context of a slot, `n_vocab` the size of the"
        " vocabulary; other names are explained in [limits](../running/limits.md).\n"
        "- Where `backend_sampling` has an effect: [back-end sampling](backend-sampling.md).\n",
        "| field | also | type | default | limits | meaning |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_sampling_line(row) for row in describe(SamplingParams))]) + "\n"


def configuration() -> str:
    """Every key of the configuration file."""
    lines = [
        "# Configuration file\n",
        NOTE,
        "A TOML file, or a JSON file with the same keys, describes a pool:"
        " `llamapool serve --config pool.toml`.\n",
        "```toml\n[gateway]\nport = 8080\nmetrics = true\n\n[[worker]]            # one table for"
        ' each model\nmodel = "model.gguf"  # relative to this file\ncount = 2             # two'
        " processes\nn_slots = 4\n\n[worker.sampling]     # defaults of request fields\n"
        "temperature = 0.2\n```\n",
        "- Command-line options take precedence over the file, and so do environment variables"
        " ([options](../using/options.md)).\n"
        "- An unknown key is an error that names its path and the nearest known key.\n"
        "- A file has at most 16 MiB and 1,024 `[[worker]]` tables.\n"
        "- Files that options or the configuration name (keys, presets, templates, grammars) may be"
        " pipes, such as a\n  shell's `<(COMMAND)`, that end within 30 seconds; models and"
        " TLS keys may not. A key file\n  may be one for `llamapool gateway` only, because the"
        " gateways of `serve` do not inherit it.\n"
        "- Relative paths in the file are relative to its folder, also those of sockets (`host ="
        ' "x.sock"`, `bind = ["ipc://x"]`); those of the command line and the environment are'
        " relative to the working directory.\n"
        "- Without `--config`, llama.cpp's own `/etc/llama.cpp/config.ini` and"
        " `~/.config/llama.cpp/config.ini` are read, if they exist.\n",
    ]
    sections: tuple[tuple[str, type], ...] = (
        ("Top level", PoolConfig),
        ("`[gateway]`", GatewayConfig),
        ("`[gateway.limits]`", LimitsConfig),
        ("`[gateway.usage]`", UsageConfig),
        ("`[[worker]]`", WorkerConfig),
        ("`[log]`", LogConfig),
        ("`[rollout]`", RolloutConfig),
        ("`[[rollout.golden]]`", GoldenConfig),
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
        "The names are those of llama-server. `llamapool serve --help` prints the same table.\n",
        "- `-c N` takes an argument; `--metrics` alone turns something on, and the name after the"
        " slash, `--no-metrics`, turns it off.\n"
        "- Underscores may be written instead of dashes, and `--name=VALUE` instead of"
        " `--name VALUE`.\n"
        "- Each option has an environment variable. A flag takes precedence over its variable, the"
        " variable over the [configuration file](../running/configuration.md), the file over the"
        " default.\n"
        "- *Key* is the name in that file: `worker.n_ctx` is `n_ctx` in a `[[worker]]` table,"
        " `sampling.top_k` is `top_k` in `[worker.sampling]`.\n"
        "- To see what a command line comes to: `llamapool config show --origin`, followed by the"
        " same options.\n"
        "- Beside the tables: `--config PATH` (`LLAMAPOOL_CONFIG`) names that file. `--no-escape`"
        " leaves `\\n` and other escapes as they are in `-r` and `--dry-sequence-breaker`."
        " `--version`, `--list-devices`, `-cl` (`--cache-list`, the models at hand) and"
        " `--completion-bash` print something and end.\n",
    ]
    for title, rows in GROUPS.items():
        lines += [f"## {title}\n", "| option | meaning | default | environment | key |"]
        lines += ["|---|---|---|---|---|", *map(_option_line, rows), ""]
    lines += _beyond()
    lines += _unused(
        "Without effect", "Accepted; a warning says why where it matters.", WITHOUT_EFFECT
    )
    lines += _unused("Refused", "`serve` does not start with one of these.", REFUSED)
    lines += _unused("Of other programs", "Accepted; one warning names all of them.", FOREIGN)
    return "\n".join(lines) + "\n"


def _option_line(option: Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in option.flags[:-1])
    last = option.flags[-1] if option.is_switch else f"{option.flags[-1]} {option.metavar}"
    flags = f"{flags}, `{_cell(last)}`" if flags else f"`{_cell(last)}`"
    if option.off:
        flags += " / " + ", ".join(f"`{flag}`" for flag in option.off)
    env = f"`{option.env}`" if option.env else ""
    return (
        f"| {flags} | {_cell(option.text)} | {_cell(option.default_text)} | {env} |"
        f" `{option.field}` |"
    )


def _beyond() -> list[str]:
    lines = [
        "\n## Values beyond the limits\n",
        "Options, variables and preset files take them with llama-server's effect. Where that is"
        " only harm, a warning says what is used, as for `--rope-scale 0`: the model's scale.\n",
        "| option | value | used | warning |\n|---|---|---|---|",
    ]
    for field, beyond in OUT_OF_RANGE.items():
        flag = next(
            option.flags[-1] for option in OPTIONS if option.field == field and option.value is None
        )
        lines += [f"| `{flag}` | {' | '.join(row)} |" for row in beyond.described()]
    return lines


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


def limits() -> str:
    """Every bound of a request, and the keys that set them."""
    keys = ("max_body_mib", "timeout_s", "queue_size", "queue_timeout_s", "drain_timeout_s")
    rows = [row for row in describe(GatewayConfig) if row.name in keys]
    lines = [
        "# Limits\n",
        NOTE,
        "Every number, text, list and depth of nesting that a client can send has an upper bound."
        " Some bounds come from the model (its vocabulary, the context of a slot), the others are"
        " keys of `[gateway.limits]` in the [configuration file](configuration.md):\n",
        "```toml\n[gateway.limits]\nmessages = 512\nimages = 4\n```\n",
        "- A value beyond its bound is a 400 that names the field; a body that is too large is a"
        " 413.\n"
        "- A path and a query of more than 8,192 bytes are a 414, as in llama-server.\n"
        "- A prompt may be as long as the context of a slot; a longer one is a 400.\n"
        "- An answer in one piece may take 256 MiB of the gateway's memory (200 bytes for each"
        " alternative of a token); a larger one is a 400 and can be streamed. Together they may"
        " take 1 GiB, then there is a 503. A stream ends when 64 MiB wait for its client.\n"
        "- When `connections` are open, the one that has been idle longest is closed for a new"
        " one. If all have requests, the new one gets a 503. The default follows from the number of"
        " files that the process may open (`ulimit -n`, `LimitNOFILE=` in a unit). If more are"
        " allowed than that, new clients are closed unanswered, and the log says once a minute"
        " `no file descriptor is free`.\n"
        "- With TLS, a handshake that has not ended counts as a connection; where there is no room,"
        " the oldest one is ended.\n"
        "- A connection of HTTP/2 may have 100 streams open. When 4,096 are open in all connections"
        " together, a connection that has one gets no second: its next stream is reset with"
        " `REFUSED_STREAM`, which says that it may be sent again.\n",
        "## Keys\n",
        "| key | type | default | bounds | limits what |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| `[gateway]` {_config_line(row)[2:]}" for row in rows]
    lines += [f"| `[gateway.limits]` {_config_line(row)[2:]}" for row in describe(LimitsConfig)]
    return "\n".join([*lines, "", "## Request fields\n", _fields_text()]) + "\n"


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
    lines = ["Names in the table:\n", "| name | stands for |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in DESCRIPTIONS.items()]
    lines += ["", "Fields of [sampling](../using/sampling.md) are on a page of their own.", ""]
    lines += ["| field | at most | of |", "|---|---|---|"]
    lines += [
        f"| `{field}` | {_plain(bound)} | {_kinds(kinds)} |"
        for (field, bound), kinds in found.items()
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
    return ", ".join([*named, *dict.fromkeys(kind for kind in kinds if kind in rest)])


PAGES: dict[str, Callable[[], str]] = {
    "using/sampling.md": sampling,
    "running/configuration.md": configuration,
    "using/options.md": options,
    "using/compatibility.md": compatibility,
    "running/limits.md": limits,
}


def wrapped(page: str) -> str:
    """Wrap the prose of a page at 120 characters; tables and code stay as they are."""
    lines, is_code = [], False
    for line in page.split("\n"):
        is_code ^= line.startswith("```")
        if is_code or line.startswith(("|", "#", "<!--")):
            lines.append(line)
        else:
            indent = "  " if line.startswith("- ") else ""
            lines += _WRAPPER(line, subsequent_indent=indent) or [line]
    return "\n".join(lines)


def stale() -> list[str]:
    """Name the pages that differ from what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).exists()
        or (DOCS / name).read_text(encoding="utf-8") != wrapped(page())
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
    bounds = leaves(shape_of(row))
    return "; ".join(
        f"{path}: {_plain(bound)}" if path else _plain(bound) for path, bound in bounds
    )


def _plain(bound: str) -> str:
    """Say in words what only means the range of a number type."""
    words = {
        f"{-FLOAT32_MAX} to {FLOAT32_MAX}, clamped": "any number",
        f"{-(2**63)} to {2**64 - 1}": "64 bits",
    }
    return words.get(bound) or re.sub(rf" to ({INT32_MAX}|{2**63 - 1})\b", " or more", bound)


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
        (DOCS / name).write_text(wrapped(page()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
