"""The model that a request names, by name, alias or file."""

from dataclasses import replace

import pytest

from gateway.pool.status import _is_file
from tests.gateway.cards import CARD


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/models/tiny.gguf", True),
        ("models/tiny.gguf", True),
        ("./tiny.gguf", True),
        ("tiny.gguf", True),
        ("ny.gguf", False),
        ("tiny", False),
        ("", False),
        ("/other/tiny.gguf", False),
    ],
)
def test_a_model_goes_by_its_file_too(name: str, expected: bool) -> None:
    assert _is_file(name, CARD.path) is expected


def test_a_relative_path_is_known_where_it_was_resolved() -> None:
    card = replace(CARD, path="/home/me/models/tiny.gguf")
    assert _is_file("models/tiny.gguf", card.path)
