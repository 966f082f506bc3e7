"""Names of files that clients choose: llama.cpp's rules, one by one."""

import pytest

from protocol.filenames import is_valid_filename


@pytest.mark.parametrize(
    "name", ["a", "slot.bin", ".hidden", "naïve café", "日本", "x" * 255, "a b"]
)
def test_plain_names_are_taken(name: str) -> None:
    assert is_valid_filename(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "x" * 256, "é" * 128, ".", "..", "a..b", "../a", "a/b", "a\\b", "/a", "C:a"),
        *('a"', "a*", "a?", "a<", "a>", "a|", " a", "a ", "a.", "a\0b", "a\x1f", "a\x7f", "a\x85"),
        *("a\uff0e", "a\u2215b", "a\u2216b", "a\ufffd", "\ufeffa", "a\ud800"),
    ],
)
def test_names_that_leave_the_folder_or_differ_between_systems_are_not(name: str) -> None:
    assert not is_valid_filename(name)
