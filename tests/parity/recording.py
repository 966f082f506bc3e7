"""What llama-server answered: a file for each area of the API in `recorded/`, a key for each case.

A value that fits into a line stands on one, and keys are in order.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.parity.cases import Case
from tests.parity.report import area_of
from tests.parity.setups import SETUPS

FOLDER = Path(os.environ.get("PARITY_RECORDED") or Path(__file__).parent / "recorded")
"""A CPU's answers; a GPU rounds differently, so its texts need a recording of their own."""
WIDTH = 120
Answers = dict[str, dict[str, Any]]


def read() -> Answers:
    """Return the answer to each case by its name: status, content type and body."""
    answers: Answers = {}
    for path in FOLDER.glob("*.json"):
        answers |= json.loads(path.read_text(encoding="utf-8"))
    return answers


def write(answers: Mapping[str, Any]) -> None:
    """Write the answers of all cases; the path of a model's file stands as MODEL."""
    models = "|".join({re.escape(setup.model) for setup in SETUPS.values()})
    files: dict[Path, dict[str, Any]] = {}
    for case in (case for setup in SETUPS.values() for case in setup.cases):
        files.setdefault(_file(case), {})[case.name] = answers[case.name]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        path.write_text(re.sub(models, "MODEL", pretty(content)) + "\n", encoding="utf-8")


def _file(case: Case) -> Path:
    words = area_of(case).lower().replace("'s", "").split()
    return FOLDER / f"{'_'.join(words)}.json"


def pretty(value: Any, indent: int = 0) -> str:
    """Write JSON; what does not fit into a line is filled into several."""
    line = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if not isinstance(value, dict | list) or indent + len(line) <= WIDTH:
        return line
    if isinstance(value, list):
        left, right = "[]"
        items = [pretty(one, indent + 1) for one in value]
    else:
        left, right = "{}"
        items = [
            f"{json.dumps(key, ensure_ascii=False)}: {pretty(one, indent + 1)}"
            for key, one in sorted(value.items())
        ]
    pad = "\n" + " " * (indent + 1)
    return f"{left}{pad}{pad.join(_filled(items, WIDTH - indent))}\n{' ' * indent}{right}"


def _filled(items: list[str], width: int) -> Iterator[str]:
    """Join items into lines; one of several lines stands alone."""
    line = ""
    for i, one in enumerate(items):
        item = one + "," * (i < len(items) - 1)
        if line and ("\n" in line + item or len(line) + len(item) >= width):
            yield line
            line = ""
        line = f"{line} {item}" if line else item
    yield line
