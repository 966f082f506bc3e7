"""The text of a preset file."""

import contextlib

import pytest

from protocol.errors import ConfigError
from worker.settings.ini import canonical, parse

TEXT = """
version = 1

; what holds for all
[*]
c = 8192          ; of all slots
n-gpu-layers=8

[user/model-GGUF:q8_0]
chat-template = chatml
# nothing
  LLAMA_ARG_CACHE_RAM = 0
[ plain ]  # a comment
model = /models/a file.gguf
empty =
"""


def test_sections_keys_and_comments_are_read_as_llama_server_reads_them() -> None:
    assert parse(TEXT, origin="p.ini") == {
        "*": {"c": "8192", "n-gpu-layers": "8"},
        "user/model-GGUF:Q8_0": {"chat-template": "chatml", "LLAMA_ARG_CACHE_RAM": "0"},
        "plain": {"model": "/models/a file.gguf", "empty": ""},
    }


def test_keys_before_the_first_section_are_a_model_named_default() -> None:
    assert parse("m = x.gguf\n", origin="p") == {"default": {"m": "x.gguf"}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a]\nno value\n", r"p.ini:2: must be \[SECTION\], KEY = VALUE or a comment"),
        ("[a]\n9 = 1\n", "p.ini:2"),
        ("[a\n", "p.ini:1"),
        ("[ ]\n", "p.ini:1"),
        ("[a]\nc = 1\n[b]\n[a]\n", r"p.ini:4: section \[a\] is there twice"),
        ("".join(f"[{i}]\n" for i in range(4097)), "p.ini:4097: more than 4096 sections"),
    ],
)
def test_mistakes_name_their_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text, origin="p.ini")


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("a", "a"),
        ("u/m:q4_k_m", "u/m:Q4_K_M"),
        ("u/m:Model-q8_0", "u/m:Q8_0"),
        ("u/m:F16", "u/m:F16"),
    ],
)
def test_tags_are_written_in_one_way(section: str, name: str) -> None:
    assert canonical(section) == name


@pytest.mark.parametrize("begin", ["[", "[a]", "[a] ;", "k", "k =", "k = a", "", ";"])
@pytest.mark.parametrize("end", ["", "x", "]", ";", "="])
def test_a_line_of_many_spaces_is_read_in_one_go(begin: str, end: str) -> None:
    """One of 4,000 spaces took 25 s, one of 100,000 days."""
    with contextlib.suppress(ConfigError):
        parse(f"{begin}{' ' * 100_000}{end}", origin="p.ini")
