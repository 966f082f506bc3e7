"""Reads the `system_prompt` of old llama-servers: from a request's field, or the file of `-spf`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError, InvalidRequest
from protocol.named_file import read_named_text
from protocol.wire.facts import SystemPrompt
from protocol.wire.schema import wrong_type

_KEYS = ("prompt", "anti_prompt", "assistant_name")
_FIELD = "system_prompt"


def read_system_prompt(value: Any) -> SystemPrompt:
    """Read the object `{prompt, anti_prompt, assistant_name}`, or the prompt alone as text.

    Raises `InvalidRequest` naming the field.
    """
    if isinstance(value, str):
        return SystemPrompt(prompt=value)
    if not isinstance(value, Mapping):
        raise wrong_type(_FIELD, "object", value)
    for key in value:
        if key not in _KEYS:
            message = f"Field '{_FIELD}.{key}': unknown; known are {', '.join(_KEYS)}"
            raise InvalidRequest(message, param=f"{_FIELD}.{key}")
    return SystemPrompt(**{key: _text(value, key) for key in _KEYS})


def load_system_prompt(path: Path) -> SystemPrompt:
    """Read a file: the object, the object in `{"system_prompt": …}`, or else plain text."""
    try:
        text = read_named_text(path)
    except OSError as error:
        raise ConfigError(f"cannot read system_prompt_file {path}: {error.strerror}") from error
    try:
        value = json.loads(text)
    except ValueError:
        return SystemPrompt(prompt=text)
    if isinstance(value, dict) and set(value) == {_FIELD}:
        value = value[_FIELD]
    if not isinstance(value, dict):
        return SystemPrompt(prompt=text)  # other JSON values are plain text
    try:
        return read_system_prompt(value)
    except InvalidRequest as error:
        raise ConfigError(f"system_prompt_file {path}: {error.message}") from error


def _text(value: Mapping[str, Any], key: str) -> str:
    text = value.get(key)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise wrong_type(f"{_FIELD}.{key}", "string", text)
    return text
