"""Chooses the chat template: by a name of the table, or as a text."""

import difflib
import logging
from dataclasses import replace

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.prompt.templates.detect import built_in
from worker.prompt.templates.table import BUILT_IN

logger = logging.getLogger("supervisor")

_ALIKE = 0.75
"""Minimum similarity at which a text is taken for a misspelt name."""


def templated(worker: WorkerConfig) -> WorkerConfig:
    """Return the worker with the text of its template; raises `ConfigError` if it is not usable."""
    text = template_text(worker.chat_template)
    if text and not worker.jinja and not built_in(text):
        raise ConfigError(
            f"--no-jinja takes llama.cpp's built-in templates alone: {', '.join(sorted(BUILT_IN))},"
            " or a text that is one of theirs"
        )
    _check_variables(worker)
    return replace(worker, chat_template=text)


def _check_variables(worker: WorkerConfig) -> None:
    name = "--chat-template-kwargs"
    try:
        thinking = worker.chat_variables.get("enable_thinking", True)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{name} must be a JSON object: {error}") from error
    if not isinstance(thinking, bool):
        raise ConfigError(f"{name}: enable_thinking must be true or false")


def template_text(chosen: str) -> str:
    """Return the text of a template given by name or written out; "" stays the model's own."""
    if "{{" in chosen or "{%" in chosen or chosen in BUILT_IN:
        return BUILT_IN.get(chosen, chosen)
    if near := difflib.get_close_matches(chosen, BUILT_IN, n=1, cutoff=_ALIKE):
        logger.warning(
            "chat template is a constant text",
            extra={
                "option": "--chat-template",
                "text": chosen,
                "hint": f"was {near[0]} meant?",
            },
        )
    return chosen
