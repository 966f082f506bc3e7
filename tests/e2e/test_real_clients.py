"""Clients as people use them, against a whole pool: two vendors' libraries, curl, Node's fetch."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests import vendors
from tests.e2e.served import Served

if TYPE_CHECKING:
    from anthropic import Anthropic
    from openai import OpenAI

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

QUESTION: Any = [{"role": "user", "content": "Write one sentence about the sea."}]
PLACE = {"id_slot": 0, "cache_prompt": False}
"""Keeps rounding the same: it depends on where the cells lie."""

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris"]}},
    "required": ["city"],
}


@pytest.fixture
def pool(real_pool: Served) -> Served:
    return real_pool


@pytest.fixture
def openai(pool: Served) -> Iterator[OpenAI]:
    """OpenAI's client."""
    with vendors.openai.OpenAI(base_url=f"{pool.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic(pool: Served) -> Iterator[Anthropic]:
    """Anthropic's client."""
    with vendors.anthropic.Anthropic(base_url=pool.url, api_key="none", max_retries=0) as client:
        yield client


# ---- OpenAI's responses -----------------------------------------------------------------------


def test_a_response_whole_and_streamed_is_the_same_text(openai: OpenAI) -> None:
    body: Any = {"model": "any", "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    whole = openai.responses.create(**body, extra_body=PLACE)
    assert len(whole.output_text.split()) > 5
    with openai.responses.stream(**body, extra_body=PLACE) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.usage is not None and whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_count_of_input_tokens_is_that_of_the_answer(openai: OpenAI) -> None:
    counted = openai.responses.input_tokens.count(
        model="any", input=QUESTION, instructions="Be brief."
    )
    answer = openai.responses.create(
        model="any", input=QUESTION, instructions="Be brief.", max_output_tokens=1
    )
    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens


def test_a_response_calls_a_function_and_takes_its_output(openai: OpenAI) -> None:
    tool: Any = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = openai.responses.create(
        model="any", input=asked, tools=[tool], tool_choice="required", max_output_tokens=200
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert call.name == "weather"
    assert json.loads(call.arguments) == {"city": "Paris"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    second = openai.responses.create(
        model="any",
        input=[*asked, *first.output, output],
        tools=[tool],
        tool_choice="none",
        max_output_tokens=12,
    )
    assert second.output_text


def test_a_streamed_function_call_accumulates(openai: OpenAI) -> None:
    tool: Any = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
    with openai.responses.stream(
        model="any",
        input="What is the weather in Paris?",
        tools=[tool],
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=200,
    ) as stream:
        pieces = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    (call,) = [item for item in final.output if item.type == "function_call"]
    assert "".join(pieces) == call.arguments
    assert json.loads(call.arguments) == {"city": "Paris"}


def test_a_response_keeps_to_a_schema(openai: OpenAI) -> None:
    form: Any = {"type": "json_schema", "name": "place", "schema": CITY, "strict": True}
    answer = openai.responses.create(
        model="any", input="Where?", text={"format": form}, max_output_tokens=64
    )
    assert json.loads(answer.output_text) == {"city": "Paris"}


# ---- Anthropic's messages ---------------------------------------------------------------------


def test_a_message_whole_and_streamed_is_the_same_text(anthropic: Anthropic) -> None:
    extra = PLACE | {"temperature": 0}
    body: Any = {"model": "any", "messages": QUESTION, "max_tokens": 24, "extra_body": extra}
    whole = anthropic.messages.create(**body)
    assert whole.content[0].type == "text" and len(whole.content[0].text.split()) > 5
    with anthropic.messages.stream(**body) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (
        whole.stop_reason,
        whole.usage.output_tokens,
    )


def test_a_stop_sequence_ends_a_message(anthropic: Anthropic) -> None:
    extra = PLACE | {"temperature": 0}
    body: Any = {"model": "any", "messages": QUESTION, "max_tokens": 12, "extra_body": extra}
    last = anthropic.messages.create(**body).content[0].text.strip()[-1]
    message = anthropic.messages.create(**body, stop_sequences=[last])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", last)


def test_the_count_of_a_message_is_that_of_the_answer(anthropic: Anthropic) -> None:
    counted = anthropic.messages.count_tokens(model="any", messages=QUESTION, system="Be brief.")
    answer = anthropic.messages.create(
        model="any", messages=QUESTION, system="Be brief.", max_tokens=1
    )
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_message_uses_a_tool_and_takes_its_result(anthropic: Anthropic) -> None:
    tool: Any = {"name": "weather", "description": "Tells the weather.", "input_schema": CITY}
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    with anthropic.messages.stream(
        model="any", max_tokens=200, messages=asked, tools=[tool], tool_choice={"type": "any"}
    ) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    (use,) = [block for block in first.content if block.type == "tool_use"]
    assert (use.name, use.input) == ("weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny."}
    turns = [
        *asked,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = anthropic.messages.create(
        model="any", max_tokens=12, messages=turns, tools=[tool], tool_choice={"type": "none"}
    )
    assert second.content[0].type == "text"


# ---- the commands of the documents ------------------------------------------------------------


def curl(*arguments: str) -> str:
    """Run curl as the documents do."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    command = [program, "--silent", "--show-error", "--max-time", "60", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


PROMPT = "Building a website can be done in 10 simple steps:"


def test_curl_with_a_json_header(pool: Served) -> None:
    answer = curl(
        *("--request", "POST", "--url", f"{pool.url}/completion"),
        *("--header", "Content-Type: application/json"),
        *("--data", json.dumps({"prompt": PROMPT, "n_predict": 8})),
    )
    assert json.loads(answer)["tokens_predicted"] == 8


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_curl_that_says_it_sends_a_form(pool: Served, path: str) -> None:
    answer = curl("-X", "POST", f"{pool.url}{path}", "-d", '{"n_predict":4, "prompt": "Hello!"}')
    assert json.loads(answer)["content"]


def test_curl_streams_lines_of_data(pool: Served) -> None:
    body = '{"n_predict":4, "prompt": "Hello!", "stream": true, "ignore_eos": true}'
    lines = curl("-N", "-X", "POST", f"{pool.url}/completion", "-d", body).strip().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["tokens_predicted"] == 4


def test_curl_tokenizes(pool: Served) -> None:
    content = "Nice to meet you!\n\nHuman: hi\nAssistant:"
    body = json.dumps({"content": content})
    tokens = json.loads(curl("-X", "POST", f"{pool.url}/tokenize", "-d", body))["tokens"]
    back = curl("-X", "POST", f"{pool.url}/detokenize", "-d", json.dumps({"tokens": tokens}))
    assert json.loads(back)["content"] == content


def test_curl_chats_with_any_key_and_model(pool: Served) -> None:
    messages = [
        {"role": "system", "content": "You are ChatGPT, an AI assistant."},
        {"role": "user", "content": "Write a limerick about python exceptions"},
    ]
    body = {"model": "gpt-3.5-turbo", "messages": messages, "max_tokens": 8}
    answer = curl(
        f"{pool.url}/v1/chat/completions",
        *("-H", "Content-Type: application/json", "-H", "Authorization: Bearer no-key"),
        *("-d", json.dumps(body)),
    )
    assert json.loads(answer)["choices"][0]["message"]["content"]


def test_a_path_that_is_not_there(pool: Served) -> None:
    assert json.loads(curl(f"{pool.url}/nothing"))["error"]["message"] == "File Not Found"


NODE = """
async function Test() {
    let response = await fetch(process.argv[1] + "/completion", {
        method: 'POST',
        body: JSON.stringify({ prompt: process.argv[2], n_predict: 8 })
    })
    console.log((await response.json()).content)
}
Test()
"""


def test_nodes_fetch_sends_plain_text(pool: Served) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    command = [node, "-e", NODE, pool.url, PROMPT]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip()


NODE_STREAM = """
async function isReadEventByEvent(prompt) {
    const body = { prompt, n_predict: 8, ignore_eos: true, temperature: 0.2, stream: true }
    const response = await fetch(process.argv[1] + "/completion", {
        method: 'POST', body: JSON.stringify(body)
    })
    try {
        for await (const chunk of response.body) {
            const text = Buffer.from(chunk).toString('utf8')
            if (text.startsWith('data: ')) {
                const message = JSON.parse(text.substring(6))  // fails if a chunk holds two events
                if (message.stop) { return true }
            }
        }
    } catch (error) {
        if (!(error instanceof SyntaxError)) { throw error }
    }
    return false
}
let answers = 0
for (let i = 0; i < 4; i++) {
    for (let tries = 0; tries < 40; tries++) {
        if (await isReadEventByEvent(i + process.argv[2])) { answers += 1; break }
    }
}
console.log(answers)
"""


def test_a_node_client_may_read_one_event_a_chunk(pool: Served) -> None:
    """As the documents' chat.mjs does, which joins nothing and splits nothing.

    On a machine whose cores are all taken Node itself joins chunks that come 10 ms apart, whoever
    sends them: then it may ask again.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    command = [node, "--input-type=module", "-e", NODE_STREAM, pool.url, PROMPT]
    answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert answer.stdout.strip() == "4", answer.stderr


def test_each_event_is_an_http_chunk_of_its_own(pool: Served) -> None:
    body = json.dumps({"prompt": PROMPT, "n_predict": 24, "stream": True})
    url = httpx.URL(pool.url)
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n{body}".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    _, _, rest = answer.partition(b"\r\n\r\n")
    chunks = []
    while (size := int((head_and_rest := rest.split(b"\r\n", 1))[0], 16)) > 0:
        chunks.append(head_and_rest[1][:size])
        rest = head_and_rest[1][size + 2 :]
    assert len(chunks) > 1
    for chunk in chunks:
        assert chunk.startswith(b"data: {") and chunk.endswith(b"}\n\n") and chunk.count(b"\n") == 2


@pytest.mark.parametrize("kind", ["text/plain;charset=UTF-8", "application/octet-stream", None])
def test_the_content_type_does_not_matter(pool: Served, kind: str | None) -> None:
    response = pool.client.post(
        "/completion",
        content=json.dumps({"prompt": PROMPT, "n_predict": 2}),
        headers={"Content-Type": kind} if kind else {},
    )
    assert response.json()["tokens_predicted"] == 2
