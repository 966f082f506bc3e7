"""The bounds of a request: each one, at its value and one beyond it."""

from pathlib import Path
from typing import Any

import pytest

from gateway.limits import check_limits, depth_of
from protocol.config import parse
from protocol.errors import ConfigError, InvalidRequest
from protocol.limits import LimitsConfig
from protocol.schema import describe
from tests.gateway.inprocess import running

SMALL = LimitsConfig(
    messages=2,
    stops=2,
    stop_chars=3,
    biases=2,
    grammar_kib=1,
    schema_depth=3,
    tools=2,
    images=1,
    image_mib=1,
)
MIB = "A" * (1024 * 1024 * 4 // 3)


def nested(depth: int) -> dict[str, Any]:
    return {} if depth == 1 else {"properties": nested(depth - 1)}


def image(data: str = "A") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data}}


FITS: list[dict[str, Any]] = [
    {"messages": [{}, {}]},
    {"input": [{}, {}]},
    {"input": ["a", "b", "c"]},
    {"input": "a text"},
    {"stop": ["abc", "b"]},
    {"stop": "abc"},
    {"stop": None},
    {"stop_sequences": ["abc", "b"]},
    {"logit_bias": [[1, 1], [2, 1]]},
    {"logit_bias": {"1": 1, "2": 1}},
    {"tools": [{}, {}]},
    {"grammar": "x" * 1024},
    {"json_schema": nested(3)},
    {"response_format": {"type": "json_object", "schema": nested(3)}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": nested(3)}}},
    {"tools": [{"type": "function", "function": {"parameters": nested(3)}}]},
    {"image_data": [{"data": MIB, "id": 1}]},
    {"messages": [{"content": [image(MIB)]}]},
    # Wrong types are the readers' business.
    {"stop": 5, "messages": 5, "tools": [5], "response_format": 5, "image_data": [5]},
]
TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{}, {}, {}]}, "Field 'messages': at most 2 entries, but got 3"),
    ({"input": [{}, {}, {}]}, "Field 'input': at most 2 entries"),
    ({"stop": ["a", "b", "c"]}, "Field 'stop': at most 2 entries"),
    ({"stop": "abcd"}, "Field 'stop': a string is longer than 3 characters"),
    ({"stop": ["abcd"]}, "Field 'stop': a string is longer than 3"),
    ({"stop_sequences": ["a", "b", "c"]}, "Field 'stop_sequences': at most 2"),
    ({"logit_bias": [[1, 1]] * 3}, "Field 'logit_bias': at most 2"),
    ({"logit_bias": {"1": 1, "2": 1, "3": 1}}, "Field 'logit_bias': at most 2"),
    ({"tools": [{}, {}, {}]}, "Field 'tools': at most 2"),
    ({"grammar": "x" * 1025}, "Field 'grammar': larger than 1 KiB"),
    ({"json_schema": nested(4)}, "Field 'json_schema': the schema nests deeper than 3"),
    ({"response_format": {"schema": nested(4)}}, "Field 'response_format': the schema nests"),
    (
        {"response_format": {"json_schema": {"schema": nested(4)}}},
        "Field 'response_format': the schema nests",
    ),
    ({"tools": [{"function": {"parameters": nested(4)}}]}, "Field 'tools': the schema nests"),
    ({"tools": [{"input_schema": nested(4)}]}, "Field 'tools': the schema nests"),
    ({"tools": [{"parameters": nested(4)}]}, "Field 'tools': the schema nests"),
    ({"image_data": [{"data": "A"}] * 2}, "Field 'image_data': at most 1"),
    ({"image_data": [{"data": MIB + "AA"}]}, "Field 'image_data': an image or a sound is larger"),
    ({"messages": [{"content": [image(), image()]}]}, "at most 1 images or sounds, but got 2"),
    ({"messages": [{"content": [image(MIB + "AA")]}]}, "Field 'messages': an image or a sound"),
    (
        {"messages": [{"content": [{"source": {"data": MIB + "AA"}}]}]},
        "Field 'messages': an image or a sound",
    ),
    (
        {"messages": [{"content": [{"input_audio": {"data": MIB + "AA"}}]}]},
        "Field 'messages': an image or a sound",
    ),
]


@pytest.mark.parametrize("body", FITS, ids=lambda body: next(iter(body)))
def test_what_fits_passes(body: dict[str, Any]) -> None:
    check_limits(body, SMALL)


@pytest.mark.parametrize(("body", "message"), TOO_MUCH, ids=lambda one: str(one)[:40])
def test_one_too_many_is_named(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_limits(body, SMALL)
    assert message in caught.value.message
    assert caught.value.param == next(iter(body))


def test_depth_counts_arrays_and_objects() -> None:
    values: list[Any] = [1, [], {}, [[]], {"a": [{}]}]
    assert [depth_of(value) for value in values] == [0, 1, 1, 2, 3]


async def test_a_body_a_header_and_a_nesting_have_bounds_that_the_configuration_sets(
    tmp_path: Path,
) -> None:
    limits = LimitsConfig(depth=8, headers=20, header_kib=4, stops=1)
    async with running(tmp_path, limits=limits, max_body_mib=1) as gateway:
        await gateway.add_worker()
        deep: Any = 1
        for _ in range(8):
            deep = [deep]
        for body, status in (
            ({"prompt": "a", "stop": ["b", "c"]}, 400),
            ({"prompt": "a", "x": deep}, 400),
            ({"prompt": "a" * 1024 * 1024}, 413),
            ({"prompt": "a", "stop": ["b"]}, 200),
        ):
            assert (await gateway.post("/completion", body)).status_code == status
        many = {f"x-{i}": "1" for i in range(21)}
        assert (await gateway.client.get("/livez", headers=many)).status_code == 431
        assert (await gateway.client.get("/livez", headers={"x": "1" * 4096})).status_code == 431


def test_every_bound_is_a_key_of_the_configuration_and_has_bounds_itself() -> None:
    for row in describe(LimitsConfig):
        pool = parse({"gateway": {"limits": {row.name: row.default}}})
        assert getattr(pool.gateway.limits, row.name) == row.default
        with pytest.raises(ConfigError, match=row.name):
            parse({"gateway": {"limits": {row.name: -1}}})
