"""Sends a case over a connection of its own and says what came back."""

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.hostile.case import HostileCase, made

ANSWER_LIMIT_S = 40.0
"""Beyond this an answer counts as hung."""
_SILENCE_S = 0.5
"""A raw connection without an answer is left after this."""
_CHUNK = 1 << 20
_KEPT = 4096
"""Bytes of an answer's beginning and of its end that are kept for the report."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case came to."""

    case: HostileCase
    status: int
    """Of the answer; 0 if the connection was closed or left without one."""
    seconds: float
    answer: bytes
    is_hung: bool = False

    @property
    def is_good(self) -> bool:
        """An answer below 500, 501 for what is off, or no answer to what is no request."""
        if self.is_hung or (not self.status and not (self.case.raw or self.case.hangs_up_s)):
            return False
        return self.status < 500 or self.status == 501

    def __str__(self) -> str:
        what = "hung" if self.is_hung else str(self.status or "closed")
        return f"{self.case}: {what} in {self.seconds:.1f} s: {self.answer[-300:]!r}"


def attack(url: str, cases: Sequence[HostileCase], *, at_once: int) -> list[Outcome]:
    """Send all cases, some at once; returns their outcomes in order."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda case: send(url, case), cases))


def send(url: str, case: HostileCase) -> Outcome:
    """Send one case and read until the server closes or the client has had enough."""
    address = urlsplit(url)
    start = time.monotonic()
    answer, is_hung = b"", False
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        try:
            connection.settimeout(ANSWER_LIMIT_S)
            connection.sendall(made(case.raw) if case.raw else _request(case))
        except OSError:
            pass  # a refusal may close before it has read everything; its answer is still there
        answer, is_hung = _read(connection, case)
    return Outcome(case, _status(answer), time.monotonic() - start, answer, is_hung)


def _request(case: HostileCase) -> bytes:
    body = made(case.body)
    lines = [b"%s %s HTTP/1.1" % (case.method.encode(), case.path.encode("latin-1", "replace"))]
    lines += [b"Host: localhost", b"Connection: close", b"Content-Length: %d" % len(body)]
    lines += [b"%s: %s" % header for header in case.headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _read(connection: socket.socket, case: HostileCase) -> tuple[bytes, bool]:
    """Return the beginning and the end of what came, and whether the rest never did."""
    deadline = time.monotonic() + (case.hangs_up_s or ANSWER_LIMIT_S)
    answer = b""
    while (left_s := deadline - time.monotonic()) > 0:
        connection.settimeout(min(left_s, _SILENCE_S) if case.raw else left_s)
        try:
            data = connection.recv(_CHUNK)
        except TimeoutError:
            break
        except OSError:
            return answer, False
        if not data:
            return answer, False
        answer += data
        if len(answer) > 2 * _KEPT:
            answer = answer[:_KEPT] + answer[-_KEPT:]
    return answer, not (case.raw or case.hangs_up_s)


def _status(answer: bytes) -> int:
    words = answer[:40].split()
    is_http = len(words) > 1 and words[0].startswith(b"HTTP/1") and words[1].isdigit()
    return int(words[1]) if is_http else 0
