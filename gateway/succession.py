"""How one gateway takes over from another, by order of the supervisor.

The new process prepares itself and waits; then it takes over the endpoint of the old one (SIGUSR1),
which says `Successor` to its workers (SIGUSR1). The new one counts the workers that have dialled.
When the supervisor finds them all there, the new one serves (SIGUSR1) and the old one finishes what
its clients have started (SIGTERM). If the new one fails before, the old one goes on (SIGUSR2).
"""

import asyncio
import contextlib
import logging
import os
import signal
from dataclasses import dataclass, field

from gateway.http.http_server import HttpServer
from gateway.pool.pool import Pool
from protocol.errors import ConfigError
from protocol.process.control import AWAITED_VARIABLE, SUCCESSOR_VARIABLE
from protocol.process.logs import STDERR
from protocol.process.notify import Notifier

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""Longer than a proxy's 60 s: the side that reuses a connection must be the first to drop it."""
_COUNT_S = 0.02
"""Seconds between two looks at the number of ready workers."""
_AGAIN_S = 5.0
"""Seconds until the next attempt to take the endpoints back."""
_AWAIT_S = 3.0
"""Time for workers to notice that the gateway is back; they dial at least once a second."""


@dataclass(slots=True)
class Signals:
    """Orders by signal. SIGTERM and SIGINT: the first starts a drain, the second ends it at once.

    SIGUSR1 and SIGUSR2 belong to the succession. SIGHUP drains if the terminal is gone.
    """

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    orders: "asyncio.Queue[signal.Signals]" = field(default_factory=asyncio.Queue)

    def install(self) -> None:
        """Install the handlers; call this on the loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.received)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, self.orders.put_nowait, number)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up, os.isatty(STDERR))

    def received(self) -> None:
        """Note one more signal to end."""
        (self.leave if self.drain.is_set() else self.drain).set()

    def _hung_up(self, had_terminal: bool) -> None:
        if had_terminal and not os.isatty(STDERR):
            self.drain.set()  # not `received`: the kernel and the shell may both send it
            return
        logger.warning(
            "configuration not reloaded",
            extra={
                "cause": "a gateway without `llamapool serve` reads it at its start",
                "hint": "restart it; files of keys are read again whenever they change",
            },
        )

    async def go(self) -> bool:
        """Wait for the next SIGUSR1; false if this process is to end instead."""
        order = asyncio.create_task(self.orders.get())
        ends = asyncio.create_task(self.drain.wait())
        await asyncio.wait([order, ends], return_when=asyncio.FIRST_COMPLETED)
        for task in (order, ends):
            task.cancel()
        return not self.drain.is_set()


def is_successor() -> bool:
    """Whether this process takes over from a gateway that runs; asked once."""
    return bool(os.environ.pop(SUCCESSOR_VARIABLE, ""))


def is_restarted() -> bool:
    """Whether a gateway of this name ran before: one that it had replaced may still be there."""
    return AWAITED_VARIABLE in os.environ


async def take_over(pool: Pool, signals: Signals, notifier: Notifier) -> bool:
    """Wait for the workers of the old gateway; false if this process is to end instead."""
    notifier.send(X_BOUND=1)
    count = asyncio.create_task(_count_workers(pool, notifier))
    try:
        return await signals.go()
    finally:
        count.cancel()


async def await_workers(pool: Pool) -> None:
    """Wait for the workers of a gateway that has died: its clients wait in the backlog."""
    text = os.environ.pop(AWAITED_VARIABLE, "")
    n_awaited = int(text) if text.isdigit() else 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_AWAIT_S):
            while pool.health().n_workers < n_awaited:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(_COUNT_S)


async def _count_workers(pool: Pool, notifier: Notifier) -> None:
    """Report the number of ready workers as it grows."""
    n_reported = -1
    while True:
        if (n_ready := pool.health().n_workers) != n_reported:
            n_reported = n_ready
            notifier.send(X_WORKERS=n_ready)
        await asyncio.sleep(_COUNT_S)


async def follow_signals(pool: Pool, signals: Signals, notifier: Notifier) -> bool:
    """Carry orders out until this process is to end; return whether another one has taken over."""
    is_aside = False
    going_on: asyncio.Task[None] | None = None
    while True:
        order = asyncio.create_task(signals.orders.get())
        ends = asyncio.create_task(signals.drain.wait())
        await asyncio.wait([order, ends], return_when=asyncio.FIRST_COMPLETED)
        ends.cancel()
        if going_on is not None:
            going_on.cancel()
        if not order.done():
            order.cancel()
            return is_aside
        if order.result() is signal.SIGUSR1 and not is_aside:
            pool.transport.connections.release_endpoints()
            is_aside = True
            n_workers = pool.health().n_workers
            notifier.send(X_ASIDE=n_workers)
            logger.info("workers sent to the new gateway", extra={"n_workers": n_workers})
        elif order.result() is signal.SIGUSR2:
            going_on = asyncio.create_task(_go_on(pool))
            is_aside = False
            logger.info("new gateway has failed", extra={"action": "this gateway goes on"})


async def _go_on(pool: Pool) -> None:
    """Take the endpoints back, at the next attempt if something is in the way."""
    while True:
        try:
            pool.transport.connections.take_endpoints_back()
            return
        except ConfigError as error:
            logger.error(
                "endpoint not taken back",
                extra={
                    "cause": error,
                    "retry_s": _AGAIN_S,
                    "action": "the workers that are connected serve",
                },
            )
        await asyncio.sleep(_AGAIN_S)


async def hand_over(server: HttpServer, signals: Signals, *, limit_s: float) -> bool:
    """Serve the open connections to their end; false if there is no time left for that."""
    logger.info(
        "new gateway serves",
        extra={"action": "open connections are served to their end", "limit_s": limit_s},
    )
    server.retire()
    emptied = asyncio.create_task(server.emptied())
    hurry = asyncio.create_task(signals.leave.wait())
    await asyncio.wait([emptied, hurry], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    for task in (emptied, hurry):
        task.cancel()
    return emptied.done() and not emptied.cancelled()
