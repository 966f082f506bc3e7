"""Bytes on a connection that are not, or not quite, HTTP."""

from tests.hostile.case import CaseList, HostileCase, Target

_BODY = b'{"prompt": "Hi", "n_predict": 2}'
_POST = b"POST /completion HTTP/1.1\r\nHost: localhost\r\n"
_LENGTH = b"Content-Length: %d\r\n" % len(_BODY)


def cases(target: Target) -> list[HostileCase]:
    """Return whole connections; the client closes its half and waits for the end."""
    found = CaseList("raw_http")
    for label, data in _CONNECTIONS.items():
        found.add(label, raw=data)
    for label, data in _LEFT.items():
        found.add(label, raw=data, hangs_up_s=0.2)
    return found.cases


def _chunked(*chunks: bytes) -> bytes:
    return _POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)


_CONNECTIONS: dict[str, bytes] = {
    "noise": bytes(range(256)) * 20,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
    "HTTP/2 by force": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0",
    "HTTP/2 flood of settings": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + b"\0\0\0\x04\0\0\0\0\0" * 10_000,
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/9.9": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "bare newlines": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "a folded header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "a space before the colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    "a carriage return in a header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
    "a long line": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "many parameters": b"GET /livez?" + b"a=b&" * 15_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20_000 + b"\r\n",
    "two lengths": _POST + b"Content-Length: 5\r\nContent-Length: 50\r\n\r\n" + _BODY,
    "a negative length": _POST + b"Content-Length: -1\r\n\r\n" + _BODY,
    "a huge length": _POST + b"Content-Length: 99999999999999999999\r\n\r\n" + _BODY,
    "a length of words": _POST + b"Content-Length: ten\r\n\r\n" + _BODY,
    "length and chunks": _POST + _LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": _POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a chunk too long": _chunked(b"ffffffffffffffff\r\n", _BODY),
    "a chunk of words": _chunked(b"xyz\r\n", _BODY),
    "a chunk extension": _chunked(b"5;" + b"a" * 100_000 + b"\r\nhello\r\n0\r\n\r\n"),
    "trailers": _chunked(b"0\r\n", b"X: a\r\n" * 10_000, b"\r\n"),
    "tiny chunks": _chunked(*[b"1\r\n%c\r\n" % byte for byte in _BODY * 300], b"0\r\n\r\n"),
    "tiny chunks that nobody reads": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100,
    "a websocket with frames": b"GET /livez HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    b"Sec-WebSocket-Protocol: \xff\r\n\r\n" + b"\x81\x05hello" * 50,
    "pipelined": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") * 200,
    "pipelined completions": (_POST + _LENGTH + b"\r\n" + _BODY) * 20,
    "smuggled": _POST + b"Content-Length: 0\r\n\r\n" + b"GET /slots HTTP/1.1\r\nHost: x\r\n\r\n",
    "expect and no body": _POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    "connect": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n",
    "absolute address": b"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "nothing": b"",
    "newlines": b"\r\n" * 1000,
}

_LEFT: dict[str, bytes] = {
    "half a request line": b"POST /comp",
    "half a header": _POST + b"Content-Le",
    "half a body": _POST + _LENGTH + b"\r\n" + _BODY[:10],
    "half a chunk": _chunked(b"20\r\n", _BODY[:10]),
    "a stream that is left": _POST
    + b"Content-Length: 63\r\n\r\n"
    + b'{"prompt": "Tell me a story", "stream": true, "n_predict": 900}',
    "an answer that is left": _POST
    + b"Content-Length: 49\r\n\r\n"
    + b'{"prompt": "Tell me a long tale", "n_predict":99}',
}
