"""Which chat template is meant: a name of the table, or a text."""

import difflib
from dataclasses import replace

from protocol.config import WorkerConfig
from protocol.errors import ConfigError
from worker.templates.table import BUILT_IN


def templated(worker: WorkerConfig) -> WorkerConfig:
    """Return the worker with its template written out; raises `ConfigError` for no known name."""
    return replace(worker, chat_template=template_text(worker.chat_template))


def template_text(chosen: str) -> str:
    """Return the text of a template given by name or written out; "" stays the model's own."""
    if not chosen or "{{" in chosen or "{%" in chosen:
        return chosen
    text = BUILT_IN.get(chosen)
    if text is None:
        near = difflib.get_close_matches(chosen, BUILT_IN, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(BUILT_IN))}"
        raise ConfigError(f"unknown chat template {chosen[:64]!r}: {hint}")
    return text
