"""Random requests of each kind."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.parity.cases import Case
from tests.parity.random_requests.drawn.values import (
    GRAMMARS,
    PARAMETERS,
    SCHEMAS,
    add,
    content,
    messages,
    sampling,
    stops,
    text,
)

_PathAndBody = tuple[str, dict[str, Any]]


def _tokens(chance: Random) -> list[int]:
    return [chance.randint(20, 40000) for _ in range(chance.randint(1, 8))]


def _completion(chance: Random) -> _PathAndBody:
    body = sampling(chance)
    body["prompt"] = chance.choice((text(chance), text(chance), _tokens(chance)))
    body["n_predict"] = chance.choice((1, 2, 5, 12, 24))
    add(body, chance, 0.35, "stop", lambda: stops(chance))
    add(body, chance, 0.3, "n_probs", lambda: chance.choice((1, 2, 5)))
    add(body, chance, 0.15, "post_sampling_probs", lambda: True)
    add(body, chance, 0.2, "return_tokens", lambda: True)
    add(body, chance, 0.15, "timings_per_token", lambda: True)
    add(body, chance, 0.15, "return_progress", lambda: True)
    add(body, chance, 0.1, "n_indent", lambda: chance.choice((2, 4)))
    rule = chance.random()
    if rule < 0.12:
        body["grammar"] = chance.choice(GRAMMARS)
    elif rule < 0.24:
        body |= {"json_schema": chance.choice(SCHEMAS), "n_predict": 40}
    add(body, chance, 0.55, "stream", lambda: True)
    return "/completion", body


def _text(chance: Random) -> _PathAndBody:
    body = sampling(chance)
    body["prompt"] = chance.choice((text(chance), _tokens(chance)))
    body["max_tokens"] = chance.choice((1, 2, 5, 12, 24))
    add(body, chance, 0.3, "stop", lambda: chance.choice((stops(chance), "a")))
    add(body, chance, 0.25, "logprobs", lambda: chance.choice((1, 3)))
    add(body, chance, 0.1, "grammar", lambda: chance.choice(GRAMMARS))
    add(body, chance, 0.5, "stream", lambda: True)
    return "/v1/completions", body


def _chat(chance: Random) -> _PathAndBody:
    body = sampling(chance) | {"messages": messages(chance)}
    body["max_tokens"] = chance.choice((1, 2, 5, 12, 24, 40))
    _chat_options(body, chance)
    schema = {"name": "n", "strict": True, "schema": chance.choice(SCHEMAS)}
    forms: tuple[dict[str, Any], ...] = (
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": schema},
        {"type": "text"},
    )
    add(body, chance, 0.2, "response_format", lambda: chance.choice(forms))
    if "response_format" not in body:
        add(body, chance, 0.06, "grammar", lambda: chance.choice(GRAMMARS))
    return "/v1/chat/completions", body


def _tools(chance: Random) -> _PathAndBody:
    body = sampling(chance) | {"messages": messages(chance, has_tools=True)}
    body["max_tokens"] = chance.choice((5, 24, 60))
    body["tools"] = [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS[name]}}
        for name in chance.sample(sorted(PARAMETERS), chance.randint(1, 3))
    ]
    add(body, chance, 0.7, "tool_choice", lambda: chance.choice(("auto", "none")))
    add(body, chance, 0.4, "parallel_tool_calls", lambda: chance.random() < 0.6)
    _chat_options(body, chance)
    return "/v1/chat/completions", body


def _chat_options(body: dict[str, Any], chance: Random) -> None:
    add(body, chance, 0.25, "stop", lambda: stops(chance))
    if chance.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": chance.choice((1, 4))}
    add(body, chance, 0.5, "stream", lambda: True)
    formats = ("none", "auto", "deepseek", "deepseek-legacy")
    add(body, chance, 0.2, "reasoning_format", lambda: chance.choice(formats))
    thinks = chance.random() < 0.5
    add(body, chance, 0.1, "chat_template_kwargs", lambda: {"enable_thinking": thinks})
    add(body, chance, 0.1, "return_progress", lambda: True)
    add(body, chance, 0.1, "return_tokens", lambda: True)


def _infill(chance: Random) -> _PathAndBody:
    body = sampling(chance) | {"input_prefix": text(chance), "input_suffix": text(chance)}
    body["n_predict"] = chance.choice((1, 5, 12, 24))
    n = chance.randint(0, 3)
    extra = [{"filename": "b/c.txt", "text": text(chance) * 5} for _ in range(n)]
    add(body, chance, 0.4, "prompt", lambda: text(chance))
    add(body, chance, 0.5, "input_extra", lambda: extra)
    add(body, chance, 0.3, "stop", lambda: stops(chance))
    add(body, chance, 0.2, "n_probs", lambda: 2)
    add(body, chance, 0.5, "stream", lambda: True)
    return "/infill", body


def _message(chance: Random) -> _PathAndBody:
    said = [one for one in messages(chance) if one["role"] != "system"]
    # llama-server passes no seed on from here, so that only the likeliest tokens are the same.
    body: dict[str, Any] = {"messages": said, "model": "any", "temperature": 0}
    body["max_tokens"] = chance.choice((1, 5, 24, 40))
    add(body, chance, 0.4, "system", lambda: content(chance))
    add(body, chance, 0.35, "stop_sequences", lambda: stops(chance))
    add(body, chance, 0.5, "stream", lambda: True)
    return "/v1/messages", body


def _message_tools(chance: Random) -> _PathAndBody:
    path, body = _message(chance)
    tools = [{"name": name, "input_schema": PARAMETERS[name]} for name in sorted(PARAMETERS)]
    return path, {**body, "tools": chance.sample(tools, 2)}


def _response(chance: Random) -> _PathAndBody:
    said = [_item(one) for one in messages(chance)]
    body: dict[str, Any] = {"input": chance.choice((said, text(chance))), "seed": 42}
    body |= {"max_output_tokens": chance.choice((1, 5, 24)), "temperature": chance.choice((0, 0.9))}
    body["cache_prompt"] = False
    # No `text.format`: llama-server does not read it.
    add(body, chance, 0.3, "instructions", lambda: text(chance))
    add(body, chance, 0.5, "stream", lambda: True)
    return "/v1/responses", body


def _item(message: dict[str, Any]) -> dict[str, Any]:
    role, said = message["role"], message["content"]
    parts = said if isinstance(said, list) else [{"type": "text", "text": said}]
    kind = "output_text" if role == "assistant" else "input_text"
    written = [{"type": kind, "text": part["text"]} for part in parts]
    more = {"type": "message", "status": "completed", "id": "m"} if role == "assistant" else {}
    return {"role": role, "content": written, **more}


def _response_tools(chance: Random) -> _PathAndBody:
    path, body = _response(chance)
    tools = [
        {"type": "function", "name": name, "parameters": PARAMETERS[name]}
        for name in sorted(PARAMETERS)
    ]
    return path, {**body, "tools": chance.sample(tools, 2)}


def _prompt(chance: Random) -> _PathAndBody:
    match chance.randint(0, 4):
        case 0:
            return "/apply-template", {"messages": messages(chance)}
        case 1:
            return "/detokenize", {"tokens": _tokens(chance)}
        case 2:
            return "/v1/chat/completions/input_tokens", {"messages": messages(chance)}
    body: dict[str, Any] = {"content": chance.choice((text(chance), [text(chance), 5, "x"]))}
    add(body, chance, 0.4, "add_special", lambda: True)
    add(body, chance, 0.4, "parse_special", lambda: False)
    add(body, chance, 0.5, "with_pieces", lambda: True)
    return "/tokenize", body


KINDS: Mapping[str, Callable[[Random], _PathAndBody]] = {
    "completion": _completion,
    "text": _text,
    "chat": _chat,
    "tools": _tools,
    "infill": _infill,
    "message": _message,
    "message-tools": _message_tools,
    "response": _response,
    "response-tools": _response_tools,
    "prompt": _prompt,
}


def random_case(kind: str, seed: int, number: int) -> Case:
    """Draw the n-th request of a kind."""
    path, body = KINDS[kind](Random(f"{kind} {seed} {number}"))
    return Case(name=f"{kind} {number}", path=path, body=body, exact=True)
