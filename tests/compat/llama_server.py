"""llama-server's own options, recorded from its `--help`: names, value, variable.

`python -m tests.compat.llama_server BINARY` records them anew.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

RECORD = Path(__file__).with_name("llama_server_options.txt")
_ENV = re.compile(r"\(env: (\w+)\)")
_NAMES = re.compile(r"(-{1,2}[A-Za-z][\w.-]*)(, *| |$)")


class Known(NamedTuple):
    """One option of llama-server."""

    flags: tuple[str, ...]
    value: str
    """What stands for its argument; empty: it takes none."""
    env: str


def recorded() -> list[Known]:
    """Return the options of the record."""
    rows = (line.split("\t") for line in RECORD.read_text().splitlines())
    return [Known(tuple(names.split()), value, env) for names, value, env in rows]


def parse(text: str) -> list[Known]:
    """Read what `llama-server --help` prints."""
    found: list[Known] = []
    block: list[str] = []
    for line in [*text.splitlines(), "-----"]:
        if not line.startswith(" ") and block:
            found.append(_known(block))
            block = []
        if (line.startswith("-") and not line.startswith("-----")) or (block and line):
            block.append(line)
    return found


def _known(block: list[str]) -> Known:
    """Read one option: its names and its value, two blanks, what it does."""
    head, names, at = block[0], [], 0
    while match := _NAMES.match(head, at):
        names.append(match[1])
        at = match.end()
        if not match[2].startswith(","):
            break
    value = re.split(r" {2,}", head[at:], maxsplit=1)[0] if head[at : at + 1] != " " else ""
    env = _ENV.search(" ".join(block))
    return Known(tuple(names), value.strip(), env[1] if env else "")


if __name__ == "__main__":
    told = subprocess.run([sys.argv[1], "--help"], capture_output=True, text=True, check=True)
    lines = [f"{' '.join(one.flags)}\t{one.value}\t{one.env}" for one in parse(told.stdout)]
    RECORD.write_text("\n".join(lines) + "\n")
