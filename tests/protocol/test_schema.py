"""Reading typed values out of JSON bodies and TOML tables."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.wire.schema import describe, json_type, param, read, refuse_unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    size: int = param(1, "A size.", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    count: int = param(3, "A count.", "n", low=0, high=10)
    ratio: float = param(0.5, "A ratio.", low=0, high=1)
    flag: bool = param(False, "A flag.")
    name: str = param("x", "A name.", choices=("x", "y"))
    maybe: bool | None = param(None, "Perhaps.")
    parts: tuple[float, ...] = param((), "Parts.")
    inner: Inner = param(Inner(), "A table.")
    many: tuple[Inner, ...] = param((), "Tables.")
    hidden: int = 7


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"count": 4}, "count", 4),
        ({"n": 4}, "count", 4),
        ({"count": 4.0}, "count", 4),
        ({"count": None}, "count", 3),
        ({"ratio": 1}, "ratio", 1.0),
        ({"maybe": True}, "maybe", True),
        ({"parts": [1, 2.5]}, "parts", (1.0, 2.5)),
        ({"inner": {"size": 2}}, "inner", Inner(size=2)),
        ({"many": [{}, {"size": 5}]}, "many", (Inner(), Inner(size=5))),
        ({"unknown": 1}, "count", 3),
    ],
)
def test_read_takes_the_declared_type(body: dict[str, Any], field: str, value: Any) -> None:
    result = getattr(read(Sample(), body), field)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("body", "message", "key"),
    [
        (
            {"count": 11},
            "Field 'count': Value must be between 0 <= value <= 10, but got 11",
            "count",
        ),
        ({"n": -1}, "Field 'n': Value must be between 0 <= value <= 10, but got -1", "n"),
        ({"count": True}, "Field 'count': type must be number, but is boolean", "count"),
        ({"count": 1.5}, "Field 'count': must be an integer, but got 1.5", "count"),
        ({"count": "4"}, "Field 'count': type must be number, but is string", "count"),
        ({"count": 10**400}, "Field 'count': the number is too large", "count"),
        ({"ratio": -(10**400)}, "Field 'ratio': the number is too large", "ratio"),
        ({"ratio": math.nan}, "Field 'ratio': Value must be finite, but got nan", "ratio"),
        ({"flag": 1}, "Field 'flag': type must be boolean, but is number", "flag"),
        ({"name": "z"}, "Field 'name': must be one of x, y, but got z", "name"),
        ({"parts": [1, "2"]}, "Field 'parts[1]': type must be number, but is string", "parts[1]"),
        ({"parts": "12"}, "Field 'parts': type must be array, but is string", "parts"),
        ({"inner": []}, "Field 'inner': type must be object, but is array", "inner"),
        (
            {"many": [{"size": 0}]},
            "Field 'many[0].size': Value must be between 1 <= value <= inf, but got 0",
            "many[0].size",
        ),
        (
            {"inner": {"sise": 2}},
            "unknown key 'inner.sise'; did you mean 'size'?",
            "inner.sise",
        ),
    ],
)
def test_read_names_the_key_that_was_sent(body: dict[str, Any], message: str, key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(Sample(), body)
    assert caught.value.message == message
    assert caught.value.param == key


def test_nothing_set_returns_the_defaults_themselves() -> None:
    defaults = Sample(count=9)
    assert read(defaults, {"x": 1}) is defaults


def test_unknown_key_is_refused_with_the_nearest() -> None:
    refuse_unknown(Sample, {"n": 1, "count": 2})
    with pytest.raises(InvalidRequest, match="unknown key 'cuont'; did you mean 'count'"):
        refuse_unknown(Sample, {"cuont": 1})


def test_describe_lists_declared_fields_only() -> None:
    names = [row.name for row in describe(Sample)]
    assert names[0] == "count"
    assert "hidden" not in names


_TEXT = st.text("sizexy0.-é", max_size=5)  # a small alphabet: the whole of Unicode is slow to load
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_FIELDS = st.sampled_from([row.name for row in describe(Sample)] + ["n", "other"])


@given(st.dictionaries(_FIELDS, _JSON, max_size=4))
def test_any_json_is_read_or_refused(body: dict[str, Any]) -> None:
    try:
        result = read(Sample(), body)
    except InvalidRequest as error:
        assert error.param
    else:
        assert 0 <= result.count <= 10
        assert 0 <= result.ratio <= 1
        assert result.name in ("x", "y")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"),
        (True, "boolean"),
        (1, "number"),
        ("", "string"),
        ([], "array"),
        ({}, "object"),
    ],
)
def test_json_type_names_what_json_calls_it(value: Any, name: str) -> None:
    assert json_type(value) == name
