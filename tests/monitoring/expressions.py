"""The expressions of the alert rules and of the dashboard, and what names they use."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "llamapool.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "llamapool.json"

_RULE = re.compile(
    r"^      - alert: (\w+)\n(?: +#.*\n)*        expr: (>-\n(?:          .*\n)+|.*\n)", re.MULTILINE
)
_METRIC = re.compile(r"\b(?:llamapool_|vllm:|llamacpp:)\w+")


def alerts() -> dict[str, str]:
    """Return the expression of each alert by its name."""
    found = {}
    for name, text in _RULE.findall(RULES.read_text(encoding="utf-8")):
        lines = [line.strip() for line in text.removeprefix(">-\n").splitlines()]
        found[name] = " ".join(line for line in lines if not line.startswith("#"))
    return found


def dashboard() -> dict[str, Any]:
    """Return the dashboard as it is imported."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def panels() -> Iterator[tuple[str, str]]:
    """Yield the title of each panel with each of its expressions, the variables filled in."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$model", ".*").replace("$__rate_interval", "1m")
            yield panel["title"], expr


def metrics_of(expr: str) -> set[str]:
    """Return the names of the metrics in an expression."""
    return set(_METRIC.findall(expr))
