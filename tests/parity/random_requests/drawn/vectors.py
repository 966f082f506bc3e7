"""Random requests for vectors and ranks, and about pictures."""

import base64
from random import Random
from typing import Any

from tests.parity.random_requests.drawn.values import add, text
from tests.worker.engine.media.test_media import png

_PATHS = ("/embedding", "/embeddings", "/v1/embeddings")
_RANKS = ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")
_ODD: tuple[Any, ...] = (None, "", 7, True, {}, {"a": 1}, [[]], [], [None], [1.5], [-1], ["a", []])
IMAGE = base64.b64encode(png(40, 30)).decode()


def embedding(chance: Random) -> tuple[str, Any]:
    """Draw a request for vectors of texts or tokens."""
    path = chance.choice(_PATHS)
    name = "content" if chance.random() < 0.4 else "input"
    body: dict[str, Any] = {name: _inputs(chance)}
    _options(body, chance)
    return path, body


def seeing(chance: Random) -> tuple[str, Any]:
    """Draw a request about pictures; vectors of these are pooled over more than llama-server's."""
    body: dict[str, Any] = {"temperature": 0, "seed": 1, "n_predict": 6}
    body["cache_prompt"] = chance.random() < 0.3
    add(body, chance, 0.3, "stream", lambda: True)
    if chance.random() < 0.5:
        parts = [_part(chance) for _ in range(chance.randint(1, 4))]
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": parts}]}
    return "/completion", {**body, "prompt": _picture(chance)}


def _part(chance: Random) -> dict[str, Any]:
    if chance.random() < 0.6:
        return {"type": "text", "text": _words(chance)}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}


def rerank(chance: Random) -> tuple[str, Any]:
    """Draw texts to rank."""
    n = chance.choice((1, 2, 3, 6))
    name = chance.choice(("documents", "documents", "texts"))
    # Scores of the same text differ in the last digit by its place in a batch.
    documents: Any = list(dict.fromkeys(_words(chance) for _ in range(n)))
    body: dict[str, Any] = {"query": _words(chance), name: documents}
    add(body, chance, 0.4, "top_n", lambda: chance.choice((0, 1, 2, 3, 99, -1)))
    add(body, chance, 0.3, "return_text", lambda: chance.random() < 0.6)
    add(body, chance, 0.2, "return_documents", lambda: chance.random() < 0.6)
    add(body, chance, 0.2, "model", lambda: "any")
    if chance.random() < 0.12:
        field = chance.choice(("query", name, "top_n", "return_text"))
        body[field] = chance.choice(_ODD)
    if chance.random() < 0.05:
        del body[chance.choice(("query", name))]
    return chance.choice(_RANKS), body


def _inputs(chance: Random) -> Any:
    share = chance.random()
    if share < 0.1:
        return chance.choice(_ODD)
    return _input(chance) if share < 0.5 else [_input(chance) for _ in range(chance.randint(1, 4))]


def _input(chance: Random) -> Any:
    match chance.randint(0, 6):
        case 0:
            return [chance.randint(0, 60) for _ in range(chance.randint(1, 8))]
        case 1:
            return [_words(chance), chance.randint(0, 60), _words(chance)]
        case 2:
            return {"prompt_string": _words(chance)}
        case 3 if chance.random() < 0.3:
            return "word " * chance.choice((60, 300, 700))
        case 4 if chance.random() < 0.3:
            return [_words(chance), 10**9]
    return _words(chance)


def _picture(chance: Random) -> Any:
    n = chance.choice((0, 1, 1, 2))
    n_marks = n if chance.random() < 0.9 else 1
    said = _words(chance) + "".join(f"<__media__>{_words(chance)}" for _ in range(n_marks))
    return {"prompt_string": said, "multimodal_data": [IMAGE] * n}


def _words(chance: Random) -> str:
    return chance.choice((text(chance), "a cat", "the dog sat", "sea and sky", "x", "A  b"))


def _options(body: dict[str, Any], chance: Random) -> None:
    forms = ("float", "base64", "base64", "hex")
    add(body, chance, 0.35, "encoding_format", lambda: chance.choice(forms))
    add(body, chance, 0.3, "embd_normalize", lambda: chance.choice((-1, 0, 1, 2, 3, 6, "x", 1.5)))
    add(body, chance, 0.1, "dimensions", lambda: chance.choice((1, 32, 576, -1, "a")))
    add(body, chance, 0.2, "model", lambda: "any")
    add(body, chance, 0.1, "cache_prompt", lambda: True)
