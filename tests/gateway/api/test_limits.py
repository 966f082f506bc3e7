"""The bounds of requests: every field of every endpoint has one, and what is beyond is named."""

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.api.anthropic import messages
from gateway.api.fields.bounds import bounds_of, check_body
from gateway.api.fields.endpoints import BODIES, ENDPOINTS
from gateway.api.fields.structures import Upload
from gateway.api.fields.tables import HEADERS, PATHS, QUERIES, fields_of
from gateway.api.openai.responses import plan as responses
from gateway.api.unsupported import REFUSED_FIELDS
from gateway.routes import service
from protocol.config.config import parse
from protocol.config.limits import LimitsConfig
from protocol.errors import ConfigError, ErrorCode, TaskError
from protocol.wire.schema import describe
from protocol.wire.shapes import (
    MAX_KEY_CHARS,
    Bounds,
    Clamp,
    Either,
    Entries,
    Fields,
    FieldShape,
    Flag,
    Free,
    Items,
    Kinds,
    Number,
    Several,
    TextShape,
    Token,
    measure,
)
from tests.fakes.echo import FakeOptions
from tests.gateway.cards import CARD
from tests.gateway.inprocess import running

SMALL = LimitsConfig(
    messages=2,
    stops=2,
    stop_chars=3,
    biases=2,
    grammar_kib=1,
    schema_kib=1,
    schema_depth=3,
    template_kib=1,
    tools=2,
    images=1,
    image_mib=1,
    text_kib=1,
    tokens=4,
    inputs=2,
)
TINY = replace(CARD, n_ctx=4, n_ctx_total=1, longest_piece=8, n_lora=1)
BOUNDS = bounds_of(TINY, SMALL)


def beyond(shape: FieldShape, bounds: Bounds) -> Iterator[Any]:
    """Make one value beyond each bound of a shape, and of those within."""
    if isinstance(shape, Kinds):
        for kind, fields in (*shape.known.items(), ("", shape.others)):
            yield from ({"type": kind} | value for value in beyond(fields, bounds))
        return
    yield from _BEYOND[type(shape)](shape, bounds)
    for path, inner in shape.inner():
        for value in beyond(inner, bounds):
            yield [value] if path == "[]" else {path[1:]: value} if path else value


def _numbers(shape: Any, bounds: Bounds) -> Iterator[Any]:
    if not shape.clamps.is_both:
        yield int(bounds[shape.low]) - 1
    if shape.clamps is Clamp.NO:
        yield int(bounds[shape.high]) + 1


def _free(shape: Any, bounds: Bounds) -> Iterator[Any]:
    deep: Any = 1
    for _ in range(int(bounds[shape.depth]) + 1):
        deep = {"a": deep}
    yield from (deep, {"a": "x" * int(bounds[shape.max_length])})


def _entries(shape: Any, bounds: Bounds) -> Iterator[Any]:
    yield {f"{i}": 1 for i in range(int(bounds[shape.max_length]) + 1)}
    yield {"x" * (MAX_KEY_CHARS + 1): 1}


def _nothing(shape: Any, bounds: Bounds) -> Iterator[Any]:
    return iter(())


_BEYOND: dict[type[FieldShape], Callable[[Any, Bounds], Iterator[Any]]] = {
    **dict.fromkeys((Flag, Fields, Either), _nothing),
    Number: _numbers,
    Token: lambda shape, bounds: iter((int(bounds["n_vocab"]), -1)),
    TextShape: lambda shape, bounds: iter(("x" * (int(bounds[shape.max_length]) + 1),)),
    Free: _free,
    Items: lambda shape, bounds: iter(([_of(shape.item)] * (int(bounds[shape.max_length]) + 1),)),
    Several: lambda shape, bounds: iter(([_of(shape.one)] * (int(bounds[shape.max_length]) + 1),)),
    Entries: _entries,
    Upload: lambda shape, bounds: iter((bytes(int(bounds["image_bytes"])),)),
}


def _of(shape: FieldShape) -> Any:
    """Make something that such a list may hold."""
    first = shape.shapes[0] if isinstance(shape, Either) else shape
    samples: dict[type[FieldShape], Any] = {
        TextShape: "",
        Number: 0,
        Token: 0,
        Fields: {},
        Free: [],
    }
    return samples[type(first)]


def bounded(shape: FieldShape) -> bool:
    """Return whether everything about a shape has a finite bound."""
    own = [
        getattr(shape, name) for name in ("low", "high", "most", "depth") if hasattr(shape, name)
    ]
    finite = all(math.isfinite(BOUNDS[bound]) for bound in own)
    return finite and all(bounded(inner) for _, inner in shape.inner())


@pytest.mark.parametrize("kind", BODIES)
def test_no_field_of_any_body_is_without_a_bound(kind: str) -> None:
    for name, shape in fields_of(BODIES[kind]).items():
        assert bounded(shape), name


def test_no_endpoint_header_query_or_path_is_without_a_table() -> None:
    assert {row.body for row in ENDPOINTS.values()} - {""} <= set(BODIES)
    assert {row.body for (method, _), row in ENDPOINTS.items() if method == "POST"} <= set(BODIES)
    assert {name for row in ENDPOINTS.values() for name in row.query} <= set(QUERIES)
    for table in (HEADERS, QUERIES, PATHS):
        assert all(bounded(shape) for shape in table.values())


@pytest.mark.parametrize("kind", BODIES)
def test_one_value_beyond_each_bound_is_refused_and_names_the_field(kind: str) -> None:
    for name, shape in fields_of(BODIES[kind]).items():
        n_refused = 0
        for value in beyond(shape, BOUNDS):
            refused = refusal(kind, {name: value} if name else value)
            assert refused is not None, (name, value)
            assert refused.code in (ErrorCode.INVALID_REQUEST, ErrorCode.CONTEXT_EXCEEDED), value
            assert refused.param is not None and refused.param.startswith(name), (name, value)
            n_refused += 1
        if isinstance(shape, TextShape | Items | Free | Entries | Several):
            assert n_refused, name


def refusal(kind: str, body: Any) -> TaskError | None:
    try:
        check_body(kind, body, BOUNDS.anew())
    except TaskError as error:
        return error
    return None


@pytest.mark.parametrize("kind", BODIES)
def test_wrong_types_are_the_readers_business(kind: str) -> None:
    samples: list[Any] = [True, "", [], {}, [True], [[]], [{}], {"a": True}]
    for name in filter(None, fields_of(BODIES[kind])):
        for value in samples:
            check_body(kind, {name: value}, BOUNDS.anew())


def image(data: str = "A") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": [{}, {}, {}]}, "Field 'messages': at most 2 entries, but got 3"),
        ({"stop": ["abcd"]}, "Field 'stop[0]': at most 3 characters, but got 4"),
        ({"messages": [{"content": [image(), image()]}]}, "at most 1 images or sounds, but got 2"),
        (
            {"messages": [{"content": "x" * 600}, {"content": "x" * 600}]},
            "Field 'messages[1].content': 1200 bytes exceed the available context size (4",
        ),
        (
            {"messages": [{"content": "", "other": ["x" * 1200]}]},
            "Field 'messages[0].other': 1200 bytes exceed",
        ),
        ({"chat_template_kwargs": {"a": "x" * 1024}}, "Field 'chat_template_kwargs': at most 1024"),
    ],
)
def test_the_message_says_where_and_how_much(body: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        check_body("ChatCompletion", body, BOUNDS.anew())
    assert message in caught.value.message


def test_a_document_is_text_and_no_image() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "x" * 600}
    block = {"type": "document", "source": source}
    check_body("Message", {"messages": [{"content": [block]}]}, BOUNDS.anew())
    refused = refusal("Message", {"messages": [{"content": [block, block]}]})
    assert refused is not None and refused.code is ErrorCode.CONTEXT_EXCEEDED
    assert refused.param == "messages[0].content[1].source.data"


def test_too_many_tokens_are_said_in_llama_servers_words() -> None:
    with pytest.raises(TaskError) as caught:
        check_body("Completion", {"prompt": [1] * 5}, BOUNDS.anew())
    assert caught.value.code is ErrorCode.CONTEXT_EXCEEDED
    assert caught.value.detail == {"n_prompt_tokens": 5, "n_ctx": 4}


def test_each_prompt_of_several_has_the_whole_context() -> None:
    check_body("Completion", {"prompt": ["x" * 1000, "y" * 1000]}, BOUNDS.anew())
    check_body("Embedding", {"input": [[1, 2, 3], [4, 5, 6, 7]]}, BOUNDS.anew())


def test_a_long_context_allows_long_texts() -> None:
    long = replace(CARD, n_ctx_total=25_000, longest_piece=100)
    check_body("Completion", {"prompt": "x" * 10_000_000}, bounds_of(long, SMALL))
    with pytest.raises(TaskError):
        check_body("Completion", {"prompt": "x" * 10_000_001}, bounds_of(long, SMALL))


def test_measures_depth_and_bytes() -> None:
    values: list[Any] = [1, [], {}, [[]], {"a": [{}]}, {"ab": "cd", "e": ["f", None]}, {"ä": "😀"}]
    sizes = [(0, 0), (1, 0), (1, 0), (2, 0), (3, 1), (2, 6), (1, 6)]
    assert [measure(one, 100) for one in [*values, "ä" * 101]] == [*sizes, (0, 101)]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("Completion", {"prompt": "😀" * 257}),
        ("ChatCompletion", {"messages": [{"content": "ä" * 512}, {"content": "x"}]}),
        ("ChatCompletion", {"chat_template_kwargs": {"ä": "ä" * 512}}),
        ("Completion", {"grammar": "ä" * 513}),
        ("Tokenize", {"content": "😀" * 257}),
    ],
)
def test_a_size_in_kib_counts_the_bytes_of_a_text(kind: str, body: dict[str, Any]) -> None:
    assert refusal(kind, body) is not None


def test_a_stop_string_counts_in_characters() -> None:
    check_body("Completion", {"stop": "😀" * 3}, BOUNDS.anew())


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


async def test_every_endpoint_holds_its_body_against_its_table(tmp_path: Path) -> None:
    limits = LimitsConfig(stops=1, tokens=4, text_kib=1, images=0, messages=1, tools=1, inputs=1)
    long, model = "x" * 500_000, "x" * 5000
    chat = {"messages": [{"role": "user", "content": long}]}
    bodies: dict[str, dict[str, Any]] = {
        "Completion": {"prompt": long},
        "TextCompletion": {"prompt": long},
        "Infill": {"input_prefix": long, "input_suffix": ""},
        "ChatCompletion": chat,
        "Message": chat,
        "Response": {"input": long},
        "Tokenize": {"content": long},
        "Detokenize": {"tokens": [1000]},
        "Embedding": {"input": long},
        "Rerank": {"query": long, "documents": ["a"]},
        "SlotAction": {"filename": "x" * 256},
        "ChatControl": {"id": long, "action": "reasoning_end"},
        "ModelOrder": {"model": model},
        "Adapters": {},
        "Props": {},
    }
    async with running(tmp_path, limits=limits) as gateway:
        await gateway.add_worker(FakeOptions(n_ctx=64, saves_slots=True, n_lora=1))
        for (method, path), row in ENDPOINTS.items():
            body: Any = bodies.get(row.body)
            if row.body == "Adapters":
                body = [{"id": 0, "scale": 1.0}] * 17
            if method != "POST" or not body:
                continue
            query = {"action": "save"} if row.body == "SlotAction" else {}
            url = path.replace("{id_slot}", "0")
            answer = await gateway.client.post(url, json=body, params=query)
            if row.body == "ModelOrder":  # 501: this server's models are fixed
                assert answer.status_code == 501
                continue
            assert answer.status_code == 400, (path, answer.text)
            assert answer.json()["error"]["param"], path
        for name in HEADERS:
            answer = await gateway.client.get("/props", headers={name: "x" * 1025})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == name
        answer = await gateway.client.get("/props", params={"model": model})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"
        answer = await gateway.client.post("/slots/1000000000?action=erase")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "id_slot"


class Asked(dict[str, Any]):
    """A body that notes which fields are looked at."""

    def __init__(self, value: dict[str, Any]) -> None:
        super().__init__(value)
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.names.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.names.add(str(key))
        return super().__contains__(key)


def test_every_bound_is_a_key_of_the_configuration_and_has_bounds_itself() -> None:
    for row in describe(LimitsConfig):
        pool = parse({"gateway": {"limits": {row.name: row.default}}})
        assert getattr(pool.gateway.limits, row.name) == row.default
        with pytest.raises(ConfigError, match=row.name):
            parse({"gateway": {"limits": {row.name: -1}}})


async def test_nothing_is_read_that_no_table_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Any = vars(service)["read_json"]
    seen: dict[str, set[str]] = {}

    async def noted(*args: Any) -> Asked:
        body = Asked(await read(*args))
        seen.setdefault(args[0]["path"], body.names)
        return body

    monkeypatch.setattr(service, "read_json", noted)
    samples: dict[str, dict[str, Any]] = {
        "Completion": {"prompt": "a"},
        "TextCompletion": {"prompt": "a"},
        "Infill": {"input_prefix": "a", "input_suffix": "b"},
        "ChatCompletion": {"messages": [{"role": "user", "content": "a"}]},
        "Message": {"messages": [{"role": "user", "content": "a"}]},
        "Response": {"input": "a"},
        "Tokenize": {"content": "a"},
        "Detokenize": {"tokens": [1]},
        "Embedding": {"input": "a"},
        "Rerank": {"query": "a", "documents": ["a"]},
        "SlotAction": {"filename": "a"},
        "ChatControl": {"id": "a", "action": "reasoning_end"},
    }
    async with running(tmp_path) as gateway:
        await gateway.add_worker(FakeOptions(saves_slots=True))
        await gateway.add_worker(FakeOptions(name="e", model="e", pooling="mean"))
        await gateway.add_worker(FakeOptions(name="r", model="r", pooling="rank"))
        for (method, path), row in ENDPOINTS.items():
            if method == "POST" and row.body in samples:
                model = {"Embedding": "e", "Rerank": "r"}.get(row.body, "fake")
                body = samples[row.body] | {"model": model}
                url = path.replace("{id_slot}", "0?action=save")
                async with asyncio.timeout(10):
                    await gateway.post(url, body)
        assert len(seen) > 20
        for path, names in seen.items():
            endpoint = "/slots/{id_slot}" if path.startswith("/slots/") else path
            table = set(fields_of(BODIES[ENDPOINTS["POST", endpoint].body]))
            refused = {
                *REFUSED_FIELDS,
                *responses._REFUSED,
                *messages._REFUSED,
            }  # by their presence
            assert names - table - refused == set(), path
