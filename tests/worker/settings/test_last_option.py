"""Of options that exclude each other, the last one of the command line counts."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.worker.settings.test_arguments import given
from worker import cli


@pytest.mark.parametrize(
    ("args", "grammar", "schema"),
    [
        (("--grammar", "x", "--json-schema", "{}"), "", "{}"),
        (("-j", "{}", "--grammar", "x"), "x", ""),
        (("--grammar-file", "FILE", "--grammar=x"), "x", ""),
        (("--grammar", "x", "--grammar-file", "FILE"), "text", ""),
        (("-jf", "FILE", "-j", "{}"), "", "{}"),
    ],
)
def test_the_last_of_grammar_and_schema_counts(
    args: tuple[str, ...], grammar: str, schema: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    changes = given(*[str(file) if word == "FILE" else word for word in args]).changes
    assert (changes["sampling.grammar"], changes["worker.json_schema"]) == (grammar, schema)


def test_the_command_line_takes_precedence_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLAMA_ARG_GRAMMAR", "x")
    assert given("-j", "{}").changes["sampling.grammar"] == ""


@pytest.mark.parametrize("text", ["nan", "-1", "x"])
def test_a_number_without_effect_must_be_one_too(text: str) -> None:
    shown = CliRunner().invoke(cli.main, ["config", "show", "-cms", text])
    assert shown.exit_code == 2
    assert "--checkpoint-min-step" in shown.output
