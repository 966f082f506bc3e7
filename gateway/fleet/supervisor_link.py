"""The gateway's connection to its supervisor for admins: orders, their answers, and reports.

It also answers the supervisor's own questions: the golden prompts of a rolling change, which go to
one worker each.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

from gateway.fleet.channel import Channel, unreachable
from protocol.errors import ErrorCode, InvalidRequest, TaskError, loading
from protocol.process.control import (
    AdminOrder,
    Answered,
    FleetReport,
    GoldenQuestion,
    Line,
    Reply,
    Subscribe,
)

logger = logging.getLogger(__name__)

_ASKED_AT_ONCE = 16
"""Questions of the supervisor that are answered at the same time."""

AskWorker = Callable[[str, str, int], Awaitable[str]]
"""Asks a worker (name, prompt, number of tokens) for its greedy answer; raises `TaskError`."""


class SupervisorLink:
    """Carries orders of admins; without a supervisor it refuses them."""

    def __init__(
        self,
        path: str,
        *,
        ask: AskWorker,
        retired: Callable[[str], None],
        timeout_s: float,
    ) -> None:
        self.report = FleetReport()
        """The latest report of the supervisor on its processes; empty without a supervisor."""
        self.serving_models: frozenset[str] = frozenset()
        """Models of which a worker serves, by that report."""
        self._channel: Channel | None = None
        if path:
            self._channel = Channel(path, self._on_line, self._fail_orders, first=Subscribe())
        self._ask = ask
        self._retired = retired
        self._timeout_s = timeout_s
        self.on_report: Callable[[FleetReport, FleetReport], None] = lambda *_: None
        """Called with the last report and the new one at each report."""
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(_ASKED_AT_ONCE)

    @property
    def is_open(self) -> bool:
        """Whether a supervisor is connected."""
        return self._channel is not None and self._channel.is_open

    @property
    def n_gateway_restarts(self) -> int | None:
        """How often gateways died and were started again; None until the supervisor has told."""
        if self._channel is not None and not self.report.processes:
            return None
        return self.report.n_gateway_restarts

    def why_absent(self, model: str) -> TaskError | None:
        """Return the error of requests to a model no worker of which has connected.

        None for a model of which the supervisor has no worker.
        """
        states = {process.state for process in self.report.processes if process.model == model}
        if not model or not states:
            return None
        if states <= {"quarantined", "given up"}:
            text = f"No worker of model '{model}' could be started; the server's log says why"
            return TaskError(ErrorCode.UNAVAILABLE, text)
        return loading()

    def open(self) -> None:
        """Begin to dial the supervisor."""
        if self._channel is not None:
            self._channel.open()

    def close(self) -> None:
        """Hang up; orders that wait for an answer fail."""
        if self._channel is not None:
            self._channel.close()
        self._fail_orders()
        for task in self._asking:
            task.cancel()

    async def order(self, make: Callable[[int], AdminOrder]) -> None:
        """Give an order and wait until it is accepted.

        `make` gets the order's id. Raises `TaskError`: NOT_FOUND for an unknown worker.
        """
        if self._channel is None:
            raise TaskError(
                ErrorCode.NOT_SUPPORTED,
                "This gateway has no supervisor: its workers are started by others. Only "
                "`llamapool serve` can do that",
            )
        if not self._channel.is_open:
            raise unreachable()
        number = next(self._ids)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._channel.send(make(number))
            async with asyncio.timeout(self._timeout_s):
                reply = await future
        except TimeoutError:
            raise unreachable() from None
        finally:
            del self._waiting[number]
        if reply.is_unknown:
            raise TaskError(ErrorCode.NOT_FOUND, reply.error, param="worker")
        if reply.error:
            raise InvalidRequest(reply.error)

    def _fail_orders(self) -> None:
        """Fail the orders that wait: their answers went down with the connection."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(unreachable())

    def _on_line(self, line: Line) -> None:
        match line:
            case FleetReport():
                self._compare(line)
                before, self.report = self.report, line
                self.serving_models = frozenset(
                    process.model
                    for process in line.processes
                    if process.model and process.state == "ready"
                )
                self.on_report(before, line)
            case Reply():
                future = self._waiting.get(line.id)
                if future is not None and not future.done():
                    future.set_result(line)
            case GoldenQuestion():
                task = asyncio.create_task(self._answer(line))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            case _:
                return  # about models on demand, which another connection takes care of

    def _compare(self, report: FleetReport) -> None:
        """Forget the workers that the supervisor does not have any more."""
        names = {process.name for process in report.processes}
        for process in self.report.processes:
            if process.model and process.name not in names:
                self._retired(process.name)

    async def _answer(self, ask: GoldenQuestion) -> None:
        text = error = ""
        try:
            async with self._gate:
                text = await self._ask(ask.worker, ask.prompt, ask.n_predict)
        except TaskError as failure:
            error = failure.message
        except TimeoutError:
            error = "it does not answer in time"
        except Exception as fault:
            logger.exception(
                "golden prompt failed",
                extra={"worker": ask.worker, "action": "the rolling change hears of it"},
            )
            error = f"{type(fault).__name__}: {fault}"
        if self._channel is not None:
            self._channel.send(Answered(id=ask.id, text=text, error=error))
