"""Parses a multipart/form-data body: texts by name, and files (RFC 7578).

The parser is python-multipart's; what it refuses is an `InvalidRequest`.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from protocol.errors import InvalidRequest

_MAX_PARTS = 256
"""Parts of a form: to read as many takes 4 ms."""
_MAX_PADDING = 64
"""Spaces and tabs behind a boundary, which the parser reads one at a time: 60 MB took 40 s."""

# It warns of each malformed body, which the client is told of.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


def parse_form(data: bytes, content_type: str) -> dict[str, Any]:
    """Return texts as `str` and files as `bytes`; raises `InvalidRequest`.

    A name that occurs several times, or ends in `[]`, has a list. What stands before the first
    boundary is ignored.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind.lower() != b"multipart/form-data" or not boundary:
        raise InvalidRequest("the request body must be multipart/form-data, with a boundary")
    mark = b"\r\n--" + boundary
    if not data.startswith(mark[2:]) and (start := data.find(mark)) >= 0:
        data = data[start + 2 :]
    _check_boundaries(data, mark)
    form = _Form()
    try:
        parser = MultipartParser(boundary, form.callbacks())
        parser.write(data)
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"the form is malformed: {error}") from error
    if not form.is_whole:
        raise InvalidRequest("the form is malformed: its end is missing")
    return form.values


def _check_boundaries(data: bytes, mark: bytes) -> None:
    """Refuse what the parser would read a byte at a time: false ends of parts, and padding."""
    at = 0
    for _ in range(_MAX_PARTS + 1):  # one behind each part
        at = data.find(mark, at)
        if at < 0:
            return
        at += len(mark)
        padding = data[at : at + _MAX_PADDING]
        if len(padding) == _MAX_PADDING and not padding.strip(b" \t"):
            raise InvalidRequest("the form is malformed: a boundary is followed by many spaces")
    raise InvalidRequest(f"the form has more than {_MAX_PARTS} parts")


@dataclass(slots=True)
class _Form:
    """What the parser has found so far."""

    values: dict[str, Any] = field(default_factory=dict)
    is_whole: bool = False
    _header: bytes = b""
    _header_value: bytes = b""
    _disposition: bytes = b""
    _content: list[bytes] = field(default_factory=list)

    def callbacks(self) -> Any:
        """Return what the parser calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_to_header,
            "on_header_value": self._add_to_header_value,
            "on_header_end": self._end_header,
            "on_part_data": self._add_content,
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._header = self._header_value = self._disposition = b""
        self._content = []

    def _add_to_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_to_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header = self._header_value = b""

    def _add_content(self, data: bytes, start: int, end: int) -> None:
        self._content.append(data[start:end])

    def _end(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode(errors="replace")
        if not name:
            raise InvalidRequest("the form has a part without a name")
        content = b"".join(self._content)
        self._put(name, content if b"filename" in options else _text(name, content))

    def _put(self, name: str, content: bytes | str) -> None:
        known = self.values.get(name.removesuffix("[]"))
        if name.endswith("[]"):
            name, known = name.removesuffix("[]"), known or []
        if known is None:
            self.values[name] = content
        else:
            self.values[name] = [*(known if isinstance(known, list) else [known]), content]

    def _finish(self) -> None:
        self.is_whole = True


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"Field '{name}': must be UTF-8", param=name) from error
