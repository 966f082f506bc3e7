"""Whatever JSON arrives beside completions: no 500, no dead worker, no file outside its folder."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.process import python
from tests.e2e.served import Served
from tests.e2e.test_fuzz import FIELDS, FUZZ, MESSAGES, SCALARS, VALUES

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

FEW = settings(FUZZ, max_examples=40)
REFUSED = 501
"""Documented: what this model or this start cannot do."""

TOOLS = VALUES | st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function")},
        optional={"name": SCALARS, "function": VALUES, "parameters": VALUES},
    ),
    max_size=2,
)
ITEMS = MESSAGES | st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["message", "function_call", "function_call_output", "x"]),
            "role": st.sampled_from(["user", "assistant", "developer"]),
            "content": VALUES,
            "call_id": SCALARS,
            "output": VALUES,
        },
    ),
    max_size=3,
)
BLOCKS = MESSAGES | st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant"]),
            "content": VALUES
            | st.lists(
                st.fixed_dictionaries(
                    {"type": st.sampled_from(["text", "tool_use", "tool_result", "image", "x"])},
                    optional={"text": SCALARS, "id": SCALARS, "input": VALUES, "source": VALUES},
                ),
                max_size=2,
            ),
        }
    ),
    max_size=3,
)
FILENAMES = VALUES | st.sampled_from(
    [
        "",
        ".",
        "..",
        "../x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "a\0b",
        "C:x",
        "x" * 300,
        "é",
        "~",
        ":notes",
    ]
)
SCALES = VALUES | st.lists(
    st.fixed_dictionaries({}, optional={"id": SCALARS, "scale": SCALARS}), max_size=3
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where slots are saved: a folder in an empty one."""
    folder: Path = tmp_path_factory.mktemp("outer") / "slots"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[Served]:
    """One worker on the real model that also embeds and saves slots."""
    arguments = ["--workers", "1", "-np", "2", "-c", "1024", "--port", "0"]
    arguments += ["--embeddings", "--pooling", "mean", "--slot-save-path", str(folder)]
    served = Served(python("-m", "worker.cli", "serve", *arguments))
    yield served.wait_until_ready()
    assert served.complete("Hi").status_code == 200
    assert "died" not in served.text
    served.signal(signal.SIGTERM)
    assert served.wait(30) == 0
    served.close()


def send(pool: Served, path: str, body: Any, *, may: int = 400) -> None:
    """Send a body; the answer is one, or says what the client did wrong."""
    response = pool.client.post(path, json=body)
    assert response.status_code < 500 or response.status_code == may, (path, body, response.text)
    assert response.status_code == 200 or response.json()["error"], (path, body)


@FEW
@given(fields=FIELDS, items=ITEMS, tools=TOOLS | st.none(), text=VALUES)
def test_responses_survive_any_body(
    pool: Served, fields: Any, items: Any, tools: Any, text: Any
) -> None:
    body = fields | {"input": items, "tools": tools, "text": text}
    send(pool, "/v1/responses/input_tokens", body)
    send(pool, "/v1/responses", body | {"max_output_tokens": 2, "n_predict": 2, "stream": False})


@FEW
@given(fields=FIELDS, blocks=BLOCKS, tools=TOOLS | st.none(), system=VALUES)
def test_messages_survive_any_body(
    pool: Served, fields: Any, blocks: Any, tools: Any, system: Any
) -> None:
    body = fields | {"messages": blocks, "tools": tools, "system": system}
    send(pool, "/v1/messages/count_tokens", body)
    send(pool, "/v1/messages", body | {"max_tokens": 2, "n_predict": 2, "stream": False})


@FEW
@given(messages=MESSAGES, tools=TOOLS | st.none(), kwargs=VALUES, prompt=SCALARS)
def test_templates_survive_any_body(
    pool: Served, messages: Any, tools: Any, kwargs: Any, prompt: Any
) -> None:
    body = {"messages": messages, "tools": tools, "chat_template_kwargs": kwargs}
    body["add_generation_prompt"] = prompt
    send(pool, "/apply-template", body)
    send(pool, "/v1/chat/completions/input_tokens", body)


@FEW
@given(
    path=st.sampled_from(["/v1/embeddings", "/embeddings", "/embedding"]),
    given_input=VALUES,
    form=SCALARS,
)
def test_embeddings_survive_any_body(pool: Served, path: str, given_input: Any, form: Any) -> None:
    send(pool, path, {"input": given_input, "encoding_format": form})
    send(pool, path, {"content": given_input})


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
    slot=st.integers(-1, 3).map(str) | st.sampled_from(["x", "1e3", "9" * 30, "%00"]),
    action=st.sampled_from(["save", "restore", "erase", "x", ""]),
    filename=FILENAMES,
)
def test_slot_actions_keep_to_their_folder(
    pool: Served, folder: Path, slot: str, action: str, filename: Any
) -> None:
    send(pool, f"/slots/{slot}?action={action}", {"filename": filename})
    assert [*folder.parent.iterdir()] == [folder]
