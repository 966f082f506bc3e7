"""Sends one request and fills in its transcript."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.bench.client.connection import BenchConnection, Client, RequestFailed
from gateway.bench.client.dialects import (
    PATHS,
    AnswerPiece,
    BenchEndpoint,
    BenchTarget,
    ChatTurn,
    body,
    read,
)
from gateway.bench.client.sse import SseParser
from gateway.bench.client.transcript import Failure, Transcript
from gateway.bench.plan import Ask

_DONE = b"[DONE]"


class MeasuredServer:
    """A server and the endpoint that is measured."""

    def __init__(self, target: BenchTarget) -> None:
        self.target = target
        self.client = Client(target.url, target.api_key)
        self.n_pieces = 0
        """Events of all answers so far, for the progress bar."""

    async def ask(
        self,
        ask: Ask,
        history: Sequence[ChatTurn],
        transcript: Transcript,
        on_text: Callable[[], object] = lambda: None,
    ) -> None:
        """Fill in the transcript of one request; `on_text` is called once, at its first text."""
        data = orjson.dumps(body(self.target, history, ask.inputs, ask.n_max))
        transcript.n_inputs, transcript.streamed = len(ask.inputs), self.target.streams
        transcript.start_s = time.perf_counter()
        try:
            async with asyncio.timeout(self.target.timeout_s):
                await self._answered(data, transcript, on_text)
        except RequestFailed as error:
            transcript.fail(error.failure, error.message)
        except TimeoutError:
            transcript.fail(Failure.TIMEOUT, f"no end after {self.target.timeout_s:g} s")
        except asyncio.CancelledError:
            transcript.fail(Failure.CUT)
            raise
        finally:
            transcript.end_s = transcript.end_s or time.perf_counter()

    async def _answered(
        self, data: bytes, transcript: Transcript, on_text: Callable[[], object]
    ) -> None:
        connection, status = await self.client.open("POST", PATHS[self.target.endpoint], data)
        transcript.status = status
        is_whole = False
        try:
            if status != 200:
                transcript.fail(Failure.REFUSED, _refusal(await connection.rest()))
            elif self.target.streams:
                await self._events(connection, transcript, on_text)
            else:
                answer = await connection.rest()
                transcript.end_s = time.perf_counter()  # to read many vectors takes a while
                transcript.take(self._read(answer), transcript.end_s)
            is_whole = True
        finally:
            if is_whole:
                self.client.done(connection)
            else:
                connection.close()
        if transcript.ok and not transcript.finish:
            transcript.fail(Failure.BROKEN, "the answer has no end")

    async def _events(
        self, connection: BenchConnection, transcript: Transcript, on_text: Callable[[], object]
    ) -> None:
        parser = SseParser()
        is_silent = True
        while data := await connection.more():
            now_s = time.perf_counter()
            for payload in parser.feed(data):
                if payload != _DONE:
                    transcript.take(self._read(payload), now_s)
                    self.n_pieces += 1
            if is_silent and transcript.arrivals_s:
                is_silent = False
                on_text()

    def _read(self, payload: bytes) -> AnswerPiece:
        try:
            answer = orjson.loads(payload)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            return AnswerPiece(error=f"no JSON object: {payload[:80]!r}")
        try:
            return read(self.target.endpoint, answer)
        except (AttributeError, TypeError, LookupError):  # the server has another API
            return AnswerPiece(error=f"no answer of this endpoint: {payload[:80]!r}")


def _refusal(data: bytes) -> str:
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data[:200].decode(errors="replace")
    piece = read(BenchEndpoint.CHAT, answer) if isinstance(answer, dict) else AnswerPiece()
    return piece.error or str(answer)[:200]


async def first_model(client: Client) -> str:
    """Return the first model that the server lists; empty if it lists none."""
    try:
        listed: Any = orjson.loads(await client.get("/v1/models"))
    except (RequestFailed, orjson.JSONDecodeError):
        return ""
    models = listed.get("data") if isinstance(listed, Mapping) else None
    return str(models[0].get("id", "")) if models else ""
