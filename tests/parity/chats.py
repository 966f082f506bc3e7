"""Requests to /v1/responses and /v1/messages, compared as those of `tests.parity.cases` are."""

from typing import Any

from tests.parity.cases import Case

SEA = "Write one sentence about the sea."
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
    {"role": "user", "content": [{"type": "text", "text": SEA}, {"type": "text", "text": "Now."}]},
]
ITEMS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi."}],
    },
    {"role": "user", "content": SEA},
]


def _response(name: str, text: bool = True, **body: Any) -> Case:
    base = {"input": SEA, "max_output_tokens": 12, "temperature": 0, "cache_prompt": False}
    return Case(name=f"response {name}", path="/v1/responses", body=base | body, text=text)


def _message(name: str, text: bool = True, **body: Any) -> Case:
    # llama-server cannot be told to forget here, and a prompt that it knows but for one token
    # is rounded differently: each case asks for something else.
    turns = [{"role": "user", "content": f"Write one sentence about the {name}."}]
    base = {"messages": turns, "max_tokens": 12, "temperature": 0, "cache_prompt": False}
    return Case(name=f"message {name}", path="/v1/messages", body=base | body, text=text)


CHATS: tuple[Case, ...] = (
    _response("plain"),
    _response("instructions", instructions="You are a poet."),
    _response("items", input=ITEMS),
    _response("stream", stream=True),
    _response("previous", text=False, previous_response_id="resp_1"),
    _response("no input", text=False, input=None),
    _response("number", text=False, input=3),
    _response("odd item", text=False, input=[{"type": "x"}]),
    _response("odd tools", text=False, tools=3),
    _response("two choices", text=False, n=2),
    Case(
        name="response count", path="/v1/responses/input_tokens", body={"input": ITEMS}, exact=True
    ),
    _message("plain"),
    _message(
        "system", system=[{"type": "text", "text": "You are "}, {"type": "text", "text": "a"}]
    ),
    _message("blocks", messages=BLOCKS),
    _message("stream", stream=True),
    _message("stop", stop_sequences=["a"]),
    _message("no content", text=False, messages=[{"role": "user"}]),
    _message("no messages", text=False, messages=None),
    Case(
        name="message count",
        path="/v1/messages/count_tokens",
        body={"messages": BLOCKS},
        exact=True,
    ),
)
