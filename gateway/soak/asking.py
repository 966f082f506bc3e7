"""One request as its client sees it: the answer in parts, how it ended, how long it was silent."""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from gateway.bench.client.connection import BenchConnection, Client, RequestFailed
from gateway.bench.client.sse import SseParser
from gateway.soak.answers import AnswerReader, is_repeated
from gateway.soak.requests import SoakRequest

_DONE = b"[DONE]"


class Ending(StrEnum):
    """How a request ended. With the first two the server has kept its promises."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """A clean error: a status with a JSON error, or an error event in a stream."""
    LOST = "lost"
    """Cut, never answered, or not even accepted."""
    DOUBLED = "doubled"
    """A piece of it came twice."""
    WRONG = "wrong"
    """It is not the answer of an unbroken run."""


@dataclass(slots=True)
class RequestOutcome:
    """What came back for one request."""

    request: SoakRequest
    status: int = 0
    parts: Mapping[str, str] = field(default_factory=dict)
    arrivals_s: list[float] = field(default_factory=list)
    """When each piece came that had something to read."""
    ending: Ending = Ending.LOST
    why: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def longest_gap_s(self) -> float:
        """Longest silence between two pieces of a stream."""
        return max((b - a for a, b in itertools.pairwise(self.arrivals_s)), default=0.0)

    def compare(self, want: Mapping[str, str]) -> None:
        """Call an answer wrong or doubled if it is not the wanted one."""
        if self.ending is not Ending.ANSWERED or self.parts == want:
            return
        names = [n for n in {**self.parts, **want} if self.parts.get(n) != want.get(n)]
        name = sorted(names, key=lambda each: not each.endswith("text"))[0]
        got, wanted = self.parts.get(name, ""), want.get(name, "")
        self.ending = Ending.DOUBLED if is_repeated(got, wanted) else Ending.WRONG
        self.why = f"{name} is {got[-200:]!r}, not {wanted[-200:]!r}"


async def ask(
    client: Client,
    request: SoakRequest,
    *,
    timeout_s: float = 60.0,
    on_piece: Callable[[], object] = lambda: None,
) -> RequestOutcome:
    """Send one request on a connection of its own and read its whole answer."""
    outcome = RequestOutcome(request)
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(client, outcome, on_piece)
    except RequestFailed as error:
        outcome.why = outcome.why or f"{error.failure}: {error.message}"
    except TimeoutError:
        outcome.ending, outcome.why = Ending.LOST, f"no end after {timeout_s:g} s"
    return outcome


async def _exchange(
    client: Client, outcome: RequestOutcome, on_piece: Callable[[], object]
) -> None:
    data = orjson.dumps(outcome.request.body)
    connection, outcome.status = await client.open("POST", outcome.request.path, data)
    outcome.headers = connection.headers
    try:
        if outcome.status != 200:
            _refused(outcome, await connection.rest())
        else:
            await _answered(connection, outcome, on_piece)
    finally:
        connection.close()


def _refused(outcome: RequestOutcome, body: bytes) -> None:
    try:
        message = orjson.loads(body)["error"]["message"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        outcome.why = f"status {outcome.status} without an error: {body[:100]!r}"
    else:
        outcome.ending, outcome.why = Ending.REFUSED, f"{outcome.status}: {message}"


async def _answered(
    connection: BenchConnection, outcome: RequestOutcome, on_piece: Callable[[], object]
) -> None:
    reader, sse = AnswerReader(outcome.request.path), SseParser()
    try:
        if outcome.request.streams:
            while data := await connection.more():
                for payload in sse.feed(data):
                    if payload != _DONE and reader.take(payload):
                        outcome.arrivals_s.append(time.perf_counter())
                        on_piece()
        else:
            reader.take(await connection.rest())
    finally:
        outcome.parts = dict(reader.parts)
        if reader.error:
            outcome.ending, outcome.why = Ending.REFUSED, f"error event: {reader.error}"
        elif reader.is_doubled:
            outcome.ending, outcome.why = Ending.DOUBLED, "a choice ended twice"
        elif not reader.is_whole:
            outcome.why = (
                outcome.why or f"no end after {sum(map(len, outcome.parts.values()))} chars"
            )
        else:
            outcome.ending = Ending.ANSWERED
