"""One hostile request: bytes, and what may come back."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Bytes = bytes | Callable[[], bytes]
"""Large bodies are made when they are sent, so that a corpus is small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileCase:
    """A request; with `raw`, the bytes of the whole connection instead."""

    group: str
    name: str
    path: str = "/completion"
    method: str = "POST"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: Bytes = b""
    raw: Bytes = b""
    hangs_up_s: float = 0.0
    """The client leaves after this long without waiting for the answer."""

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"


def made(data: Bytes) -> bytes:
    """Return the bytes, also of what makes them."""
    return data() if callable(data) else data


def encoded(body: Any) -> bytes:
    """Write JSON as Python does: NaN, Infinity and lone surrogates are written, not refused."""
    return json.dumps(body).encode()


class CaseList:
    """Collects the cases of one group."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.cases: list[HostileCase] = []

    def post(self, name: str, path: str, body: Any, **extra: Any) -> None:
        """Add a POST of a JSON value, of bytes, or of a function that returns either."""
        if callable(body):

            def late() -> bytes:
                value = body()
                return value if isinstance(value, bytes) else encoded(value)

            data: Bytes = late
        else:
            data = body if isinstance(body, bytes) else encoded(body)
        self.add(name, path=path, body=data, **extra)

    def complete(self, name: str, **fields: Any) -> None:
        """Add a `/completion` of two tokens."""
        self.post(name, "/completion", {"prompt": "Hi", "n_predict": 2} | fields)

    def chat(self, name: str, **fields: Any) -> None:
        """Add a chat of two tokens."""
        messages = [{"role": "user", "content": "Hi"}]
        self.post(name, "/v1/chat/completions", {"messages": messages, "max_tokens": 2} | fields)

    def add(self, name: str, **fields: Any) -> None:
        """Add any case."""
        self.cases.append(HostileCase(group=self.group, name=name, **fields))


@dataclass(frozen=True, slots=True)
class Target:
    """What the corpus must know of the pool that it is sent to."""

    n_vocab: int
    n_ctx: int
    """Tokens of one slot."""
    settings: Mapping[str, Any]
