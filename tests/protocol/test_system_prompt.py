"""The system prompt of llama-server of 2023 and 2024, in a request and in a file."""

import json
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.system_prompt import load_system_prompt, read_system_prompt
from protocol.wire.facts import SystemPrompt

FIELDS = {"prompt": "A dialog.", "anti_prompt": "User:", "assistant_name": "Bot:"}
WHOLE = SystemPrompt(**FIELDS)


def test_a_request_may_bring_the_object_or_the_text_alone() -> None:
    assert read_system_prompt(FIELDS) == WHOLE
    assert read_system_prompt("A dialog.") == SystemPrompt(prompt="A dialog.")
    assert read_system_prompt({"prompt": None}) == SystemPrompt()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(FIELDS), WHOLE),
        (json.dumps({"system_prompt": FIELDS}), WHOLE),
        ("A dialog.\n", SystemPrompt(prompt="A dialog.\n")),
        ("42", SystemPrompt(prompt="42")),
        ("{{ half of a template", SystemPrompt(prompt="{{ half of a template")),
    ],
)
def test_a_file_holds_the_object_bare_or_wrapped_or_plain_text(
    tmp_path: Path, text: str, expected: SystemPrompt
) -> None:
    path = tmp_path / "system"
    path.write_text(text)
    assert load_system_prompt(path) == expected


@pytest.mark.parametrize("text", ['{"prompt": 7}', '{"promt": "x"}'])
def test_a_wrong_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "system.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"system\.json"):
        load_system_prompt(path)
    with pytest.raises(ConfigError, match="nowhere"):
        load_system_prompt(tmp_path / "nowhere")
