"""Embedding vectors as JSON."""

import base64
from array import array

import orjson


def vector_json(vector: bytes, *, as_base64: bool) -> orjson.Fragment:
    """Write one vector; at once, so that the floats of a large answer never exist together."""
    if as_base64:
        return orjson.Fragment(orjson.dumps(base64.b64encode(vector).decode()))
    return orjson.Fragment(orjson.dumps(array("f", vector).tolist()))
