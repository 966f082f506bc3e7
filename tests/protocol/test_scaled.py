"""Files with a strength."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.scaled_file import ScaledFile, join_scale, split_scale


@pytest.mark.parametrize(
    ("text", "path", "scale"),
    [
        ("a.gguf", "a.gguf", 1.0),
        ("a.gguf:0.5", "a.gguf", 0.5),
        ("/x/a:b.gguf", "/x/a:b.gguf", 1.0),
        ("/x/a:b.gguf:-2", "/x/a:b.gguf", -2.0),
        ("a:inf", "a:inf", 1.0),
        (":1", ":1", 1.0),
    ],
)
def test_a_number_behind_the_last_colon_is_the_scale(text: str, path: str, scale: float) -> None:
    assert split_scale(text) == (path, scale)


@given(st.text(min_size=1), st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_written_reads_back(path: str, scale: float) -> None:
    assert split_scale(join_scale(ScaledFile(path, scale))) == (path, scale)
