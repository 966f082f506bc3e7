"""Requests to a server of embeddings."""

from typing import Any

from tests.parity.cases import Case

OAI, NATIVE, OLD = "/v1/embeddings", "/embeddings", "/embedding"


def _vector(name: str, path: str = OAI, **body: Any) -> Case:
    return Case(name=f"vector {name}", path=path, body=body, exact=True)


VECTORS: tuple[Case, ...] = (
    _vector("text", input="Hello world"),
    _vector("other text", input="The cat sat on the mat."),
    _vector("several", input=["Three words here", "One"]),
    _vector("tokens", input=[19556, 905]),
    _vector("several tokens", input=[[19556, 905], [253, 655, 260]]),
    _vector("mixed", input=["A text", [253, 655]]),
    _vector("base64", input="A sea in base64", encoding_format="base64"),
    _vector("odd encoding", input="a", encoding_format="hex"),
    _vector("model", input="Any model", model="some-name"),
    _vector("content", content="Taken as content"),
    _vector("native", NATIVE, content="A native one"),
    _vector("native several", NATIVE, content=["Now two", "of them"]),
    _vector("native input", NATIVE, input="An input"),
    _vector("old", OLD, content="An old one"),
    _vector("raw", NATIVE, content="Not normalized", embd_normalize=-1),
    _vector("largest", NATIVE, content="By the largest", embd_normalize=0),
    _vector("taxicab", NATIVE, content="By the sum", embd_normalize=1),
    _vector("nothing"),
    _vector("null", input=None),
    _vector("empty", input=""),
    _vector("empty list", input=[]),
    _vector("number", input=7),
    _vector("object", input={"a": 1}),
    _vector("bad token", input=[999999999]),
    _vector("too long", input="word " * 600),
    Case(name="vector completion", path="/completion", body={"prompt": "Hi", "n_predict": 2}),
    Case(name="vector rerank", path="/rerank", body={"query": "a", "documents": ["b"]}),
    Case(name="vector models", path="/v1/models", method="GET"),
)
