"""The bodies and answers of /tokenize and /detokenize."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import islice
from typing import Any

import orjson

from gateway.api.fields.options import read_flag
from gateway.api.fields.prompt import mixed
from protocol.errors import InvalidRequest
from protocol.wire.messages import Detokenize, Tokenize, Tokenized

_PART = 10_000
"""Tokens that are written at once, in 1 ms."""


def tokenize_task(body: Mapping[str, Any], n_vocab: int) -> Tokenize:
    """Read a /tokenize body; missing content has no tokens, not even special ones."""
    content = body.get("content")
    if isinstance(content, list):
        content = mixed(content, n_vocab, key="content")
    elif not isinstance(content, str | None):
        raise InvalidRequest("Field 'content': must be a string or an array", param="content")
    return Tokenize(
        content="" if content is None else content,
        add_special=read_flag(body, "add_special") and content is not None,
        parse_special=read_flag(body, "parse_special", default=True),
        with_pieces=read_flag(body, "with_pieces"),
    )


def tokenized(message: Tokenized, *, with_pieces: bool) -> dict[str, Any]:
    """Return the tokens, written in parts; a piece that is not UTF-8 is a list of its bytes.

    orjson holds the interpreter lock until it has written all: of a million pieces for 0.13 s.
    """
    tokens = array("i", message.tokens)
    items = _with_pieces(tokens, message) if with_pieces else iter(tokens)
    parts = iter(lambda: list(islice(items, _PART)), [])
    return {"tokens": [orjson.Fragment(orjson.dumps(part)[1:-1]) for part in parts]}


def _with_pieces(tokens: Iterable[int], message: Tokenized) -> Iterator[dict[str, Any]]:
    pieces = BytesIO(message.pieces)  # whatever sizes a worker sends, no byte is read twice
    for token, size in zip(tokens, array("i", message.sizes), strict=True):
        yield {"id": token, "piece": _piece(pieces.read(size))}


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def detokenize_task(body: Mapping[str, Any], n_vocab: int) -> Detokenize:
    """Read a /detokenize body; missing tokens are an empty list."""
    value = body.get("tokens")
    return Detokenize(tokens=_tokens([] if value is None else value, n_vocab))


def _tokens(value: Any, n_vocab: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidRequest("Field 'tokens': must be an array of numbers", param="tokens")
    tokens: Sequence[int | str] = mixed(value, n_vocab, key="tokens")
    if any(isinstance(token, str) for token in tokens):
        raise InvalidRequest("Field 'tokens': must be an array of numbers", param="tokens")
    return tuple(token for token in tokens if isinstance(token, int))
