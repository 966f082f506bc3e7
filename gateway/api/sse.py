"""Server-sent events as bytes: framing only, no words of any API and no I/O."""

END = b"\n\n"
"""Ends an event; no JSON text holds it."""

PING = b":\n\n"
"""A comment: clients skip it, and proxies see that the connection is alive."""

DONE = b"data: [DONE]\n\n"
"""Closes a stream of OpenAI's API; llama-server's own streams end without it."""


def event(payload: bytes) -> bytes:
    """Frame one JSON text (which holds no raw newline) as an event."""
    return b"data: " + payload + b"\n\n"


def named_event(name: str, payload: bytes) -> bytes:
    """Frame one JSON text as an event of a kind that has a name."""
    return b"event: " + name.encode() + b"\ndata: " + payload + b"\n\n"
