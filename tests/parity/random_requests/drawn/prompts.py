"""Random requests about tokens and templates, which generate nothing."""

from random import Random
from typing import Any

from tests.parity.random_requests.drawn.dialogs import DIALOGS
from tests.parity.random_requests.drawn.values import PARAMETERS, add, messages, text

_ODD_TEXTS = (
    "\u0000a",
    "\ud83d",
    "\ufeffb",
    "\u00a0\u200b",
    "<|im_end|>",
    "<|endoftext|>x",
    "\r\n",
)
_FLAGS: tuple[Any, ...] = (True, False, None, 0, 1, "true", [])
_COUNTS = (
    *("/v1/messages/count_tokens", "/v1/chat/completions/input_tokens", "/apply-template"),
    *("/apply-template", "/apply-template", "/v1/responses/input_tokens"),
)


def tokenize(chance: Random) -> tuple[str, Any]:
    """Draw a request for tokens or for a text."""
    if chance.random() < 0.3:
        return "/detokenize", _detokenize(chance)
    share = chance.random()
    content: Any = _text(chance)
    if share < 0.4:
        content = [
            chance.choice((_text(chance), chance.randint(0, 8191)))
            for _ in range(chance.randint(0, 4))
        ]
    elif share < 0.5:
        content = chance.choice(
            (None, 7, True, {}, {"a": "b"}, [[]], [[1, 2]], [1.5], [-1], ["a", None])
        )
    body: dict[str, Any] = {"content": content}
    for name in ("add_special", "parse_special", "with_pieces"):
        add(
            body,
            chance,
            0.45,
            name,
            lambda: chance.choice(_FLAGS[: 2 if chance.random() < 0.9 else 9]),
        )
    if chance.random() < 0.03:
        del body["content"]
    return "/tokenize", body


def _text(chance: Random) -> str:
    found = text(chance)
    if chance.random() < 0.3:
        found += chance.choice(_ODD_TEXTS)
    return found + "".join(chr(chance.randint(1, 0xD7FF)) for _ in range(chance.choice((0, 0, 3))))


def _detokenize(chance: Random) -> Any:
    tokens: Any = [chance.randint(0, 8191) for _ in range(chance.randint(0, 9))]
    if chance.random() < 0.4:  # bytes alone, most of them no UTF-8
        tokens = [chance.randint(0, 300) for _ in range(chance.randint(1, 6))]
    if chance.random() < 0.15:
        tokens = chance.choice(
            (None, 7, "a", {}, ["a"], [1.5], [-1], [10**9], [True], [[1]], [2**40])
        )
    return {"tokens": tokens} if chance.random() < 0.97 else {}


def template(chance: Random) -> tuple[str, Any]:
    """Draw a conversation to render or to count."""
    path = chance.choice(_COUNTS)
    if chance.random() < 0.3:
        body: dict[str, Any] = dict(chance.choice(list(DIALOGS.values())))
        body.pop("tools", None)
    else:
        body = {"messages": messages(chance, has_tools=chance.random() < 0.3)}
    if path == "/v1/responses/input_tokens":
        body = {"input": text(chance)}
        add(body, chance, 0.3, "instructions", lambda: text(chance))
        return path, body
    if chance.random() < 0.25:
        _odd(body["messages"], chance)
    if "count_tokens" in path:
        add(body, chance, 0.3, "system", lambda: text(chance))
        return path, body
    add(body, chance, 0.2, "add_generation_prompt", lambda: chance.choice((True, False, None)))
    add(
        body,
        chance,
        0.15,
        "continue_final_message",
        lambda: chance.choice((True, False, "content")),
    )
    add(body, chance, 0.1, "chat_template_kwargs", lambda: {"enable_thinking": False, "x": [1]})
    add(body, chance, 0.1, "reasoning_effort", lambda: "low")
    add(body, chance, 0.05, "chat_template", lambda: "{{ messages[0].content }}")
    return path, body


def tools(chance: Random) -> tuple[str, Any]:
    """Draw a conversation with tools to render."""
    path, body = "/apply-template", {"messages": messages(chance, has_tools=True)}
    body["tools"] = [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS[name]}}
        for name in chance.sample(sorted(PARAMETERS), chance.randint(1, 3))
    ]
    return path, body


def _odd(said: list[dict[str, Any]], chance: Random) -> None:
    if not said:
        return
    i = chance.randrange(len(said))
    name = chance.choice(("role", "content"))
    said[i] = {
        **said[i],
        name: chance.choice((None, 7, "", "x", [], {}, [{"type": "text"}], [7], True)),
    }
    if chance.random() < 0.2:
        del said[i][name]
