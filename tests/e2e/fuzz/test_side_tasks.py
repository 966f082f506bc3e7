"""Whatever JSON arrives beside completions: no 500, no dead worker, no file outside its folder."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.fuzz.test_bodies import FUZZ, MESSAGES, SCALARS, VALUES
from tests.e2e.served import Served

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

FEW = settings(FUZZ, max_examples=FUZZ.max_examples * 3 // 4)
REFUSED = 501
"""Documented: what this model or this start cannot do."""

TEXTS = st.text(max_size=20)
ODD = st.integers(0, 9).flatmap(lambda n: TEXTS if n else VALUES)
"""Mostly right, so that many a body gets past the reader."""


def rows(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Arrays of objects with some of these fields."""
    return st.lists(st.fixed_dictionaries({}, optional=fields), min_size=1, max_size=3)


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these fields, often none."""
    return st.just({}) | st.fixed_dictionaries({}, optional=fields)


TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "x"]), "content": ODD}
    ),
    min_size=1,
    max_size=3,
)
FUNCTION = st.fixed_dictionaries({"name": ODD}, optional={"parameters": st.just({}) | VALUES})
TOOLS = st.lists(FUNCTION.map(lambda one: {"type": "function", "function": one}), max_size=2)
FLAT_TOOLS = st.lists(FUNCTION.map(lambda one: {"type": "function", **one}), max_size=2)
BLOCK_TOOLS = st.lists(FUNCTION, max_size=2)
KINDS = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "x"])
ITEMS = TEXTS | TURNS | rows(type=KINDS, role=ODD, content=ODD, call_id=ODD, name=ODD, output=ODD)
PARTS = st.sampled_from(["text", "tool_use", "tool_result", "image", "thinking", "x"])
BLOCKS = rows(type=PARTS, text=ODD, id=ODD, name=ODD, input=VALUES, content=ODD, source=VALUES)
FILENAMES = (
    st.sampled_from(["a", "b", "é", " c", "d.bin"])
    | VALUES
    | st.sampled_from(
        ["", ".", "..", "../x", "/etc/x", "a/b", "a\\b", "a\0b", "C:x", "x" * 300, "~", ":notes"]
    )
)
SCALES: st.SearchStrategy[Any] = st.just([]) | rows(id=SCALARS, scale=SCALARS) | VALUES


def send(pool: Served, path: str, body: Any, *, may: int = 400) -> None:
    """Send a body; the answer is one, or says what the client did wrong."""
    response = pool.client.post(path, json=body)
    assert response.status_code < 500 or response.status_code == may, (path, body, response.text)
    assert response.status_code == 200 or response.json()["error"], (path, body)


@FEW
@given(items=ITEMS, more=maybe(tools=FLAT_TOOLS, text=VALUES, instructions=ODD, tool_choice=VALUES))
def test_responses_survive_any_body(pool: Served, items: Any, more: dict[str, Any]) -> None:
    body = {"input": items} | more
    send(pool, "/v1/responses/input_tokens", body)
    send(pool, "/v1/responses", body | {"max_output_tokens": 2})


@FEW
@given(
    turns=TURNS,
    blocks=st.just("Hi") | BLOCKS,
    more=maybe(tools=BLOCK_TOOLS, system=ODD, stop_sequences=VALUES, tool_choice=VALUES),
)
def test_messages_survive_any_body(
    pool: Served, turns: Any, blocks: Any, more: dict[str, Any]
) -> None:
    body = {"messages": [*turns, {"role": "user", "content": blocks}]} | more
    send(pool, "/v1/messages/count_tokens", body)
    send(pool, "/v1/messages", body | {"max_tokens": 2})


@FEW
@given(
    messages=TURNS | MESSAGES,
    more=maybe(tools=TOOLS, chat_template_kwargs=VALUES, add_generation_prompt=SCALARS),
)
def test_templates_survive_any_body(pool: Served, messages: Any, more: dict[str, Any]) -> None:
    body = {"messages": messages} | more
    send(pool, "/apply-template", body)
    send(pool, "/v1/chat/completions/input_tokens", body)


@FEW
@given(
    path=st.sampled_from(["/v1/embeddings", "/embeddings", "/embedding"]),
    content=TEXTS | st.lists(ODD | st.lists(st.integers(-1, 50_000), max_size=3), max_size=3),
    more=maybe(encoding_format=st.sampled_from(["float", "base64", "x"]), embd_normalize=SCALARS),
)
def test_embeddings_survive_any_body(
    pool: Served, path: str, content: Any, more: dict[str, Any]
) -> None:
    send(pool, path, {"input": content} | more)
    send(pool, path, {"content": content} | more)


@FEW
@given(body=SCALES)
def test_adapters_survive_any_body(pool: Served, body: Any) -> None:
    send(pool, "/lora-adapters", body)
    assert pool.client.get("/lora-adapters").json() == []


@FEW
@given(body=st.dictionaries(st.sampled_from(["query", "documents", "input_prefix"]), VALUES))
@pytest.mark.parametrize("path", ["/rerank", "/infill"])
def test_what_the_model_cannot_do_is_refused(pool: Served, path: str, body: Any) -> None:
    send(pool, path, body, may=REFUSED)


@FEW
@given(
    slot=st.sampled_from(["0", "1"])
    | st.integers(-1, 3).map(str)
    | st.sampled_from(["x", "1e3", "9" * 30, "%00"]),
    action=st.sampled_from(["save", "restore", "erase", "x", ""]),
    filename=FILENAMES,
)
def test_slot_actions_keep_to_their_folder(
    pool: Served, folder: Path, slot: str, action: str, filename: Any
) -> None:
    send(pool, f"/slots/{slot}?action={action}", {"filename": filename})
    assert [*folder.parent.iterdir()] == [folder]
