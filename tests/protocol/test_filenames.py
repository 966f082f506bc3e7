"""Names of files that clients choose: llama.cpp's rules, one by one."""

from pathlib import Path

import pytest

from protocol.filenames import expanded, is_valid_filename


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


def test_a_home_that_nobody_knows_leaves_the_name_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded("~/m.gguf") == Path("/home/me/m.gguf")
    assert expanded("~no-such-user/m.gguf") == Path("~no-such-user/m.gguf")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    assert expanded("~/m.gguf") == Path("~/m.gguf")
