"""Runs a load: decides when each request is sent.

The requests come from `plan.py`; their answers go into `client/transcript.py`.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.bench.client.asking import MeasuredServer
from gateway.bench.client.dialects import BenchTarget, ChatTurn
from gateway.bench.client.transcript import Role, Transcript
from gateway.bench.plan import Conversation, LoadShape, background, conversation
from gateway.bench.words import drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLoad:
    """Number of requests, and when they are sent."""

    concurrency: int = 1
    """Closed loop: conversations that run at once."""
    rate: float = 0.0
    """Open loop: conversations that begin per second; 0 is a closed loop."""
    requests: int = 0
    """Conversations to begin; 0 is no limit."""
    duration_s: float = 0.0
    """Seconds after which no conversation begins; 0 is no limit."""
    warmup: int = 0
    """Conversations before the load, which are not measured."""
    background: int = 0
    """Streams that decode during the whole load."""
    background_tokens: int = 512
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """Result of a load."""

    transcripts: tuple[Transcript, ...]
    late_s: float = 0.0
    """Largest delay between the drawn arrival of a request and its sending, in seconds."""
    client_cpu_s: float = 0.0
    n_pieces: int = 0
    is_cut_short: bool = False


class Driver:
    """One run of one load."""

    def __init__(self, target: BenchTarget, shape: LoadShape, load: BenchLoad) -> None:
        self.load = load
        self.transcripts: list[Transcript] = []
        self.started_s = 0.0
        self._server = MeasuredServer(target)
        self._shape = shape
        self._late_s = 0.0

    @property
    def n_done(self) -> int:
        """Requests of the load that have ended."""
        return sum(
            transcript.end_s > 0 for transcript in self.transcripts if transcript.role is Role.LOAD
        )

    @property
    def turns(self) -> int:
        """Requests of each conversation."""
        return self._shape.turns

    @property
    def n_pieces(self) -> int:
        """Events received so far."""
        return self._server.n_pieces

    async def run(self) -> BenchRun:
        """Run the load; if it is cancelled, return the results so far."""
        is_cut_short = False
        for index in range(self.load.warmup):
            await self._converse(self._drawn(index, Role.WARMUP), Role.WARMUP)
        cpu_s, n_before = time.process_time(), self.n_pieces
        try:
            await self._measured()
        except asyncio.CancelledError:
            is_cut_short = True
        finally:
            self._server.client.close()
        return BenchRun(
            transcripts=tuple(self.transcripts),
            late_s=self._late_s,
            client_cpu_s=time.process_time() - cpu_s,
            n_pieces=self.n_pieces - n_before,
            is_cut_short=is_cut_short,
        )

    async def _measured(self) -> None:
        signs = [asyncio.Event() for _ in range(self.load.background)]
        tasks = [
            asyncio.create_task(self._background(number, sign)) for number, sign in enumerate(signs)
        ]
        try:
            for sign in signs:
                await sign.wait()
            self.started_s = time.perf_counter()
            await (self._open_loop() if self.load.rate else self._closed_loop())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _closed_loop(self) -> None:
        todo = self._numbers()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.load.concurrency):
                group.create_task(self._one_after_another(todo))

    async def _one_after_another(self, todo: Iterator[int]) -> None:
        for index in todo:
            if self._is_late(time.perf_counter()):
                return
            await self._converse(self._drawn(index), Role.LOAD)

    async def _open_loop(self) -> None:
        rng = drawn(self.load.seed, "arrivals")
        at_s = self.started_s
        async with asyncio.TaskGroup() as group:
            for index in self._numbers():
                at_s += rng.expovariate(self.load.rate)
                if self._is_late(at_s):
                    return
                await asyncio.sleep(at_s - time.perf_counter())
                self._late_s = max(self._late_s, time.perf_counter() - at_s)
                group.create_task(self._converse(self._drawn(index), Role.LOAD))

    async def _background(self, number: int, started: asyncio.Event) -> None:
        """Decode one answer after the other; the first token of the first one sets `started`."""
        try:
            for turn in itertools.count():
                index = turn * self.load.background + number
                one = self._drawn(index, Role.BACKGROUND)
                if not await self._converse(one, Role.BACKGROUND, started):
                    return
        finally:
            started.set()

    async def _converse(
        self, asked: Conversation, role: Role, started: asyncio.Event | None = None
    ) -> bool:
        """Send the requests of a conversation; return whether all were answered."""
        history = [ChatTurn("system", asked.system)] if asked.system else []
        for turn, ask in enumerate(asked.asks):
            history.append(ChatTurn("user", ask.inputs[-1]))
            transcript = Transcript(role=role, conversation=asked.index, turn=turn)
            self.transcripts.append(transcript)
            await self._server.ask(
                ask, history, transcript, started.set if started else lambda: None
            )
            if not transcript.ok:
                return False
            history.append(ChatTurn("assistant", transcript.text))
        return True

    def _drawn(self, index: int, role: Role = Role.LOAD) -> Conversation:
        shape = self._shape
        if role is Role.BACKGROUND:
            shape = background(self.load.background_tokens)
        return conversation(shape, self.load.seed, index, role)

    def _numbers(self) -> Iterator[int]:
        return iter(range(self.load.requests)) if self.load.requests else itertools.count()

    def _is_late(self, at_s: float) -> bool:
        return 0 < self.load.duration_s < at_s - self.started_s
