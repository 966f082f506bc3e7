"""Forms: texts and files by name, whatever a client writes."""

import contextlib
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.fields.forms import from_form
from gateway.http.bodies.form import parse_form
from gateway.http.bodies.parsing import parse_texts
from protocol.config.limits import LimitsConfig
from protocol.errors import InvalidRequest

TYPE = "multipart/form-data; boundary=bound"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    """Write one part of a form."""
    file = "" if filename is None else f'; filename="{filename}"'
    head = f'--bound\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    """Write a whole form."""
    return b"".join(parts) + b"--bound--\r\n"


def test_texts_are_texts_and_files_are_bytes() -> None:
    data = form(part("language", "français".encode()), part("file", b"\0\r\n--boun", "a.wav"))
    assert parse_form(data, TYPE) == {"language": "français", "file": b"\0\r\n--boun"}


def test_a_name_that_comes_again_or_ends_in_brackets_has_a_list() -> None:
    data = form(part("a", b"1"), part("b[]", b"2"), part("a", b"3"), part("b[]", b"4"))
    assert parse_form(data, TYPE) == {"a": ["1", "3"], "b": ["2", "4"]}
    assert parse_form(form(part("b[]", b"2")), TYPE) == {"b": ["2"]}


def test_what_stands_before_the_first_boundary_is_ignored() -> None:
    data = b"For readers of mail.\r\n--boun\r\n" + form(part("a", b"1"))
    assert parse_form(data, TYPE) == {"a": "1"}


@given(st.binary(max_size=300))
def test_any_file_comes_out_as_it_went_in(content: bytes) -> None:
    if b"--bound" not in content:
        assert parse_form(form(part("file", content, "x")), TYPE) == {"file": content}


@given(st.binary(max_size=200), st.integers(0, 200))
def test_a_damaged_form_is_read_or_refused(noise: bytes, place: int) -> None:
    whole = form(part("prompt", b"say"), part("file", b"abc", "x"))
    with contextlib.suppress(InvalidRequest):
        parse_form(whole[:place] + noise + whole[place + len(noise) :], TYPE)


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"{}", "application/json", "must be multipart/form-data"),
        (b"", TYPE, "its end is missing"),
        (form(), "multipart/form-data", "with a boundary"),
        (form(), "multipart/form-data; boundary=" + "x" * 300, "malformed"),
        (part("file", b"abc", "x"), TYPE, "its end is missing"),
        (form(part("", b"a")), TYPE, "without a name"),
        (b"--bound\r\n\r\na\r\n--bound--\r\n", TYPE, "without a name"),
        (form(part("prompt", b"\xff")), TYPE, "must be UTF-8"),
        (form(*[part("a", b"")] * 257), TYPE, "more than 256 parts"),
        (b"--bound\r\nA: " + b"y" * 100_000, TYPE, "malformed"),
        (b"noise" * 1000 + form(), TYPE, "malformed"),
    ],
)
def test_what_is_no_form_is_refused(data: bytes, kind: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_form(data, kind)


@pytest.mark.parametrize("content", [b"\r", b"\r\n", b"\r\n--boun", b"--bound", b"-"])
def test_a_large_file_takes_no_time_whatever_it_holds(content: bytes) -> None:
    many = content * (8_000_000 // len(content))
    start = time.process_time()
    assert parse_form(form(part("file", many, "x")), TYPE) == {"file": many}
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize("behind", [b"x", b"-x", b"\rx", b" "])
def test_a_form_of_false_ends_or_of_padding_is_refused_at_once(behind: bytes) -> None:
    end = b"\r\n--bound" + behind * (1 if b"x" in behind else 1_000_000)
    many = end * (8_000_000 // len(end))
    start = time.process_time()
    with pytest.raises(InvalidRequest, match=r"256 parts|many spaces"):
        parse_form(form(part("file", many, "x")), TYPE)
    assert time.process_time() - start < 0.5


def test_a_boundary_may_be_padded() -> None:
    data = form(part("a", b"1"), part("b", b"2")).replace(b"\r\n--bound\r", b"\r\n--bound \t\r")
    assert parse_form(data, TYPE) == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("texts", "name", "words"),
    [
        ({"stop": "[" + "[]," * 500_001 + "[]]"}, "stop", "more than 500000 values"),
        ({"a": "[" + "0," * 300_000 + "0]", "b": "[" + "0," * 300_000 + "0]"}, "b", "values"),
        ({"unknown": "[" * 200 + "]" * 200}, "unknown", "deeper than 128 levels"),
    ],
)
def test_json_in_a_form_has_the_bounds_of_a_body(
    texts: dict[str, str], name: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        parse_texts(texts, LimitsConfig())
    assert caught.value.param == name


def test_fields_that_are_no_texts_are_read_as_json() -> None:
    body: dict[str, Any] = {"temperature": "0.5", "stream": "true", "prompt": "1", "seed": "x"}
    expected = {"temperature": 0.5, "stream": True, "prompt": "1", "seed": "x"}
    whole = body | {"file": b"1", "unknown": "[1]"}
    assert from_form("Transcription", whole, partial(parse_texts, limits=LimitsConfig())) == {
        **expected,
        "file": b"1",
        "unknown": [1],
    }
