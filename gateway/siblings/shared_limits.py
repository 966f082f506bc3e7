"""Key limits that hold for all gateways of a host together: they exchange usage once a second.

Usage at another gateway counts here when it is reported, so for a second a key may exceed a limit
by what it sent to other gateways. A gateway that starts takes over the counts of a running one; if
none runs, it reads the tokens of the day from the usage database.
"""

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.pool.pool import Pool
from gateway.pool.tenants.allowances import Refund, Spent, UsageHistory
from gateway.pool.tenants.moving_window import WINDOW_S
from gateway.pool.tenants.tenant_concurrency import ConcurrencyElsewhere
from gateway.siblings.siblings import Answer, Siblings

logger = logging.getLogger(__name__)

_QUESTION = "limits"
_EVERY_S = 1.0
"""Seconds between two exchanges."""


class _PendingUsage:
    """Usage that another gateway has not been sent yet, or has not received."""

    def __init__(self, now: float) -> None:
        self.asked_at = now
        self.number = 0
        """Number of the answer that has it."""
        self.sent: _PendingUsage | None = None
        """What was in the last answer, which may not have arrived."""
        self.spent: dict[str, list[int]] = {}
        self.refunds: dict[tuple[str, int, int], int] = {}
        """By tenant, second and day."""

    def give_back(self, refund: Refund) -> None:
        key = refund.tenant, math.floor(refund.at), refund.day
        self.refunds[key] = self.refunds.get(key, 0) + refund.tokens

    def forget_seconds(self) -> None:
        """Keep refunds by the day alone, which bounds their number."""
        refunds, self.refunds = self.refunds, {}
        for (tenant, _, day), tokens in refunds.items():
            self.give_back(Refund(tenant, tokens, 0.0, day))

    def add(self, other: "_PendingUsage") -> None:
        for tenant, (requests, tokens) in other.spent.items():
            self.note(Spent(tenant, requests, tokens))
        for key, tokens in other.refunds.items():
            self.refunds[key] = self.refunds.get(key, 0) + tokens

    def note(self, spent: Spent) -> None:
        counts = self.spent.setdefault(spent.tenant, [0, 0])
        counts[0] += spent.requests
        counts[1] += spent.tokens


class SharedLimits:
    """Exchanges the usage of keys with the other gateways of this host."""

    def __init__(
        self, pool: Pool, siblings: Siblings, used_today: Callable[[], Mapping[str, int]]
    ) -> None:
        """`used_today` returns the tokens of the day by key; it may read files."""
        self._pool = pool
        self._siblings = siblings
        self._used_today = used_today
        self._askers: dict[str, _PendingUsage] = {}
        self._received: dict[str, int] = {}
        """Number of the last answer of each gateway that counts here."""
        self._turns: dict[str, Mapping[str, int]] = {}
        """Tasks of each tenant at each other gateway, as it has last said."""
        self._numbers = itertools.count(1)
        self._has_started = False
        """Whether this gateway has read the usage so far; a gateway that starts has not."""
        self._clock: asyncio.Task[None] | None = None
        siblings.respond(_QUESTION, self._answer)
        pool.dispatcher.allowances.on_spent = self._spent
        pool.dispatcher.allowances.on_refund = self._refund

    async def start(self) -> None:
        """Take over the usage so far, and ask the others each second from now on."""
        answers = await self._exchange(is_first=True)
        started = (answer for answer in answers if answer["has_started"])
        histories = next((answer["histories"] for answer in started), None)
        if histories is None:
            used = await asyncio.to_thread(self._used_today)
            histories = {tenant: UsageHistory(today=n) for tenant, n in used.items()}
        for tenant, history in histories.items():
            self._pool.dispatcher.allowances.restore(tenant, UsageHistory(*history))
        self._has_started = True
        if self._siblings.folder is not None:
            self._clock = asyncio.create_task(self._run())

    def close(self) -> None:
        """Stop asking; idempotent."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    async def _run(self) -> None:
        is_failing = False
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self._exchange(is_first=False)
                is_failing = False
            except Exception:
                if is_failing:
                    continue  # for an hour without a free descriptor, one line and not 3,600
                is_failing = True
                logger.exception(
                    "unexpected exception",
                    extra={
                        "place": "shared limits",
                        "retry_s": _EVERY_S,
                        "action": "until then this gateway knows no newer usage of the others",
                    },
                )

    async def _exchange(self, *, is_first: bool) -> list[Answer]:
        """Ask all others once, and count what they have used since; return their answers."""
        name, known = self._siblings.name, set(self._askers)
        answers = await self._siblings.ask(
            _QUESTION, asker=name, is_first=is_first, received=self._received
        )
        self._note_who_is_there(known, answers)
        found = {name: answer for name, answer in answers.items() if answer}
        allowances = self._pool.dispatcher.allowances
        for sibling, answer in found.items():
            self._received[sibling] = answer["number"]
            for tenant, (requests, tokens) in answer["spent"].items():
                allowances.learn(Spent(tenant, requests, tokens))
            for refund in answer["refunds"]:
                allowances.give_back(Refund(*refund))
            self._turns[sibling] = answer["turns"]
        self._pool.dispatcher.queue.share_concurrency(_elsewhere(self._turns.values()))
        return [*found.values()]

    def _note_who_is_there(self, known: Iterable[str], names: Iterable[str]) -> None:
        """Forget gateways that have ended; note the usage from now on for each that is there."""
        now = asyncio.get_running_loop().time()
        for gone in set(known).difference(names):
            self._askers.pop(gone, None)
        for name in names:
            asker = self._askers.setdefault(name, _PendingUsage(now))
            if now - asker.asked_at > WINDOW_S:
                asker.forget_seconds()
        self._received = {name: self._received.get(name, 0) for name in names}
        self._turns = {name: self._turns.get(name, {}) for name in names}

    async def _answer(self, asked: Mapping[str, Any]) -> Answer:
        """Return the usage since the last answer that arrived; the whole history at first."""
        now, name = asyncio.get_running_loop().time(), str(asked["asker"])
        last = self._askers.get(name)
        is_first = bool(asked["is_first"])
        if last is None or is_first:
            last = _PendingUsage(now)
        received = asked["received"].get(self._siblings.name, 0)
        if last.sent is not None and received != last.sent.number:
            last.add(last.sent)
        last.number, last.sent = next(self._numbers), None
        pending = self._askers[name] = _PendingUsage(now)
        pending.sent = last
        return {
            "number": last.number,
            "spent": last.spent,
            "refunds": [(who, n, at, day) for (who, at, day), n in last.refunds.items()],
            "histories": self._histories() if is_first else {},
            "has_started": self._has_started,
            "turns": dict(self._pool.dispatcher.queue.concurrency.n_tasks),
        }

    def _histories(self) -> dict[str, list[Any]]:
        return {
            tenant: [*history] for tenant, history in self._pool.dispatcher.allowances.histories()
        }

    def _spent(self, spent: Spent) -> None:
        for asker in self._askers.values():
            asker.note(spent)

    def _refund(self, refund: Refund) -> None:
        for asker in self._askers.values():
            asker.give_back(refund)


def _elsewhere(turns: Iterable[Mapping[str, int]]) -> dict[str, ConcurrencyElsewhere]:
    found: dict[str, ConcurrencyElsewhere] = {}
    for at_one in turns:
        for tenant, n_tasks in at_one.items():
            before = found.get(tenant, ConcurrencyElsewhere(0, 0))
            found[tenant] = ConcurrencyElsewhere(before.n_tasks + n_tasks, before.n_gateways + 1)
    return found
