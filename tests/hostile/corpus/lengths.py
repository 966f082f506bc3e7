"""Texts and lists as long as a body lets them be."""

from typing import Any

from protocol.sampling import SamplingParams
from protocol.schema import describe
from tests.hostile.case import CaseList, HostileCase, Target

_MILLION = 1_000_000


def cases(target: Target) -> list[HostileCase]:
    """Return long prompts, long fields, and lists of very many entries."""
    found = CaseList("lengths")
    _prompts(found)
    for row in describe(SamplingParams):
        if row.kind in (int, float, bool):
            continue
        for label, value in _LONG.items():
            found.post(f"{row.name} of {label}", "/completion", _late(row.name, value))
    _lists(found)
    return found.cases


_LONG: dict[str, Any] = {
    "a long text": lambda: "x" * _MILLION,
    "many texts": lambda: ["x"] * 100_000,
    "long texts": lambda: ["x" * 10_000] * 200,
    "many ids": lambda: list(range(100_000)),
    "many keys": lambda: {str(i): 1 for i in range(100_000)},
}


def _late(field: str, value: Any) -> Any:
    return lambda: {"prompt": "Hi", "n_predict": 2, field: value()}


def _prompts(found: CaseList) -> None:
    for label, text in {
        "one letter": "a",
        "spaces": " ",
        "newlines": "\n",
        "digits": "7",
        "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "combining marks": "e\u0301\u0302\u0303",
        "words": "word ",
        "NUL": "\0",
    }.items():
        for n in (30_000, 2 * _MILLION // len(text)):
            found.post(
                f"tokenize {n} x {label}", "/tokenize", lambda t=text, n=n: {"content": t * n}
            )
            found.post(
                f"prompt of {n} x {label}",
                "/completion",
                lambda t=text, n=n: {"prompt": t * n, "n_predict": 2},
            )
    found.post(
        "tokenize with pieces",
        "/tokenize",
        lambda: {"content": "a b " * 500_000, "with_pieces": True},
    )
    found.post("detokenize 3 M", "/detokenize", lambda: {"tokens": [1000] * 3 * _MILLION})
    found.post("prompt of 5 M ids", "/completion", lambda: {"prompt": [1000] * 5 * _MILLION})
    found.post("40 MB body", "/completion", lambda: {"prompt": "x" * 40 * _MILLION})
    found.post("70 MB body", "/completion", lambda: {"prompt": "x" * 70 * _MILLION})
    found.post(
        "five choices of a long prompt",
        "/completion",
        lambda: {"prompt": "hello " * 2 * _MILLION, "n": 5, "n_predict": 2},
    )


def _lists(found: CaseList) -> None:
    one = {"role": "user", "content": "Hi"}
    chat = "/v1/chat/completions"
    found.post("100,000 messages", chat, lambda: {"messages": [one] * 100_000, "max_tokens": 2})
    found.post("4,000 messages", chat, lambda: {"messages": [one] * 4000, "max_tokens": 2})
    found.post("long role", chat, lambda: {"messages": [{"role": "r" * _MILLION, "content": "x"}]})
    found.post("many parts", chat, lambda: {"messages": [_parts(100_000)], "max_tokens": 2})
    found.post("100,000 texts", "/v1/embeddings", lambda: {"input": ["a"] * 100_000})
    found.post("long text", "/v1/embeddings", lambda: {"input": "a b " * 500_000})
    found.post("documents", "/v1/rerank", lambda: {"query": "a", "documents": ["b"] * 100_000})
    found.post("files", "/infill", lambda: {"input_extra": [{"text": "x" * 1000}] * 10_000})
    found.post("prefix", "/infill", lambda: {"input_prefix": "x" * 5 * _MILLION})
    found.post("keys", "/completion", lambda: {str(i): i for i in range(_MILLION)})
    found.post("prompts", "/completion", lambda: {"prompt": ["a"] * 20_000, "n_predict": 1})
    found.post("responses", "/v1/responses", lambda: {"input": [one] * 100_000})
    found.post("anthropic", "/v1/messages", lambda: {"messages": [one] * 100_000, "max_tokens": 2})
    found.post("system", "/completion", lambda: {"system_prompt": {"prompt": "x" * 5 * _MILLION}})
    found.post("template", "/apply-template", lambda: {"messages": [one] * 50_000})
    found.post("names", "/completion", lambda: {"prompt": "Hi", "model": "m" * _MILLION})


def _parts(n: int) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "x"}] * n}
