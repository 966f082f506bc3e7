"""What each tenant has used of its limits: requests and tokens of a minute, tokens of a day.

Pure bookkeeping with injected clocks. Tokens are reserved when a task is submitted and settled by
what it has cost when it has ended, in the currency of the fair queue (`charges.py`). A task that
was admitted is never cut off for a limit.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.keys.api_key import KeyLimits
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tenants.moving_window import WINDOW_S, MovingWindow
from protocol.errors import ErrorCode, TaskError

DAY_S = 86_400
"""Seconds of a day; days are those of UTC."""
_DAYS = 2
"""Days whose tokens are kept: a clock may go over midnight and back."""


class Spent(NamedTuple):
    """An amount that one tenant has used."""

    tenant: str
    requests: int
    tokens: int


class Refund(NamedTuple):
    """Tokens that were reserved and not used; its time says which minute and day get them back."""

    tenant: str
    tokens: int
    at: float
    """When they were reserved, by the monotonic clock of the host."""
    day: int
    """Number of the day on which they were reserved."""


class UsageHistory(NamedTuple):
    """What is known of one tenant."""

    requests: Sequence[tuple[float, int]] = ()
    """Of the last minute, as `(age in seconds, number)`, the oldest first."""
    tokens: Sequence[tuple[float, int]] = ()
    today: int = 0
    """Tokens of the day."""


class Remaining(NamedTuple):
    """One limit, what is left of it, and in how many seconds all of it is there again."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(slots=True)
class _Account:
    """One tenant's use."""

    requests: MovingWindow = field(default_factory=MovingWindow)
    tokens: MovingWindow = field(default_factory=MovingWindow)
    days: dict[int, int] = field(default_factory=dict)
    """Tokens of the two days that are nearest: a clock may go over midnight and back."""
    reserved: dict[int, Refund] = field(default_factory=dict)
    """What is given back of each task unless it is used."""

    def is_idle(self, now: float, day: int) -> bool:
        """Whether nothing is known of it that would still count."""
        used = self.requests.total(now) or self.tokens.total(now) or self.reserved
        return not used and not any(
            abs(other - day) < _DAYS and n for other, n in self.days.items()
        )


class Allowances:
    """The accounts of all tenants that have limits."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._accounts: dict[str, _Account] = {}
        self.on_spent: Callable[[Spent], None] = lambda _: None
        """Called with every amount that is used here."""
        self.on_refund: Callable[[Refund], None] = lambda _: None
        """Called with every amount that is given back here."""

    def __repr__(self) -> str:
        return f"<Allowances accounts={len(self._accounts)}>"

    def request(self, tenant: str, limits: KeyLimits) -> None:
        """Count a request; raises `TaskError` if the minute is full."""
        limit = limits.requests_per_minute
        if not limit:
            return
        wait_s = self._account(tenant).requests.wait_s(1, limit, self._clock())
        if wait_s:
            raise _too_many(f"{limit} requests a minute", wait_s)
        self._count(Spent(tenant, 1, 0))

    def reserve(self, spec: TaskSpec, usual_answer: int) -> None:
        """Reserve the tokens of a task: its prompt and its answer, the usual one if none is given.

        A task that would need more than the whole limit gets all of it, if its prompt fits; several
        of one request divide what their prompts leave. Raises `TaskError` if the tokens are not
        there.
        """
        limits, n_tasks = spec.limits, spec.together.n_tasks
        least = spec.together.n_tokens if n_tasks > 1 else spec.n_tokens
        if not limits.counts_tokens:
            return
        account = self._account(spec.tenant)
        minute, day = limits.tokens_per_minute, limits.tokens_per_day
        for limit, name in ((minute, "minute"), (day, "day")):
            if limit and least > limit:
                prompt = f"These {n_tasks} prompts" if n_tasks > 1 else "This prompt"
                verb = "are" if n_tasks > 1 else "is"
                text = f"{prompt} of about {least} tokens {verb} larger than the limit of the key"
                raise TaskError(ErrorCode.QUOTA_EXCEEDED, f"{text}: {limit} tokens a {name}")
        answer = usual_answer if spec.n_answer is None else spec.n_answer
        shares = [(limit - least) // n_tasks for limit in (minute, day) if limit]
        most = spec.n_tokens + min(answer, *shares)
        if minute and (wait_s := account.tokens.wait_s(most, minute, self._clock())):
            raise _too_many(f"{minute} tokens a minute", wait_s)
        if day and self._today(account) + most > day:
            raise self._day_is_over(day)
        account.reserved[spec.task_id] = Refund(spec.tenant, most, self._clock(), self._day())
        self._count(Spent(spec.tenant, 0, most))

    def settle(self, tenant: str, task_id: int, cost: float) -> None:
        """Replace what was reserved for a task by what it has cost."""
        account = self._accounts.get(tenant)
        reserved = account.reserved.pop(task_id, None) if account is not None else None
        if reserved is None:
            return
        unused = reserved.tokens - math.ceil(cost)
        if unused > 0:
            refund = reserved._replace(tokens=unused)
            self.give_back(refund)
            self.on_refund(refund)
        else:
            self._count(Spent(tenant, 0, -unused))

    def give_back(self, refund: Refund) -> None:
        """Take back what was reserved here or at another gateway, where it still counts."""
        account = self._account(refund.tenant)
        account.tokens.take_back(refund.tokens, refund.at, self._clock())
        if refund.day in account.days:
            account.days[refund.day] = max(0, account.days[refund.day] - refund.tokens)

    def learn(self, spent: Spent) -> None:
        """Count what a tenant has used just now, here or at another gateway."""
        now, account = self._clock(), self._account(spent.tenant)
        account.requests.add(spent.requests, now)
        account.tokens.add(spent.tokens, now)
        self._add_today(account, spent.tokens)

    def restore(self, tenant: str, history: UsageHistory) -> None:
        """Take in what another gateway knows of a tenant, before this one has counted anything."""
        now, account = self._clock(), self._account(tenant)
        for age_s, n in history.requests:
            account.requests.add(n, now - age_s)
        for age_s, n in history.tokens:
            account.tokens.add(n, now - age_s)
        self._add_today(account, history.today)

    def histories(self) -> Iterator[tuple[str, UsageHistory]]:
        """Yield what is known of each tenant."""
        now = self._clock()
        for tenant, account in self._accounts.items():
            history = UsageHistory(
                account.requests.parts(now), account.tokens.parts(now), self._today(account)
            )
            yield tenant, history

    def remaining(self, tenant: str, limits: KeyLimits) -> Mapping[str, Remaining]:
        """Return what is left of each limit: `requests`, `tokens` and `tokens-day`."""
        now, account = self._clock(), self._account(tenant)
        found: dict[str, Remaining] = {}
        for name, limit, window in (
            ("requests", limits.requests_per_minute, account.requests),
            ("tokens", limits.tokens_per_minute, account.tokens),
        ):
            if limit:
                left = max(0, limit - window.total(now))
                found[name] = Remaining(
                    limit, left, min(WINDOW_S, window.wait_s(limit, limit, now))
                )
        if limits.tokens_per_day:
            left = max(0, limits.tokens_per_day - self._today(account))
            found["tokens-day"] = Remaining(limits.tokens_per_day, left, self._until_midnight_s())
        return found

    def prune(self) -> None:
        """Forget tenants that have used nothing that still counts."""
        now, day = self._clock(), self._day()
        idle = [name for name, account in self._accounts.items() if account.is_idle(now, day)]
        for name in idle:
            del self._accounts[name]

    def _count(self, spent: Spent) -> None:
        self.learn(spent)
        self.on_spent(spent)

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account()
        return account

    def _today(self, account: _Account) -> int:
        return account.days.get(self._day(), 0)

    def _add_today(self, account: _Account, tokens: int) -> None:
        today = self._day()
        account.days[today] = self._today(account) + tokens
        if len(account.days) > _DAYS:
            del account.days[max(account.days, key=lambda day: abs(day - today))]

    def _day(self) -> int:
        return int(self._wall() // DAY_S)

    def _until_midnight_s(self) -> float:
        return DAY_S - self._wall() % DAY_S

    def _day_is_over(self, limit: int) -> TaskError:
        wait_s = math.ceil(self._until_midnight_s())
        message = (
            f"The key has reached its limit of {limit} tokens a day; the day ends at 00:00 UTC"
        )
        return TaskError(ErrorCode.QUOTA_EXCEEDED, message, detail={"retry_after_s": wait_s})


def _too_many(what: str, wait_s: float) -> TaskError:
    message = f"The key has reached its limit of {what}; try again in {wait_s:.1f} s"
    detail = {"retry_after_s": max(1, math.ceil(wait_s))}
    return TaskError(ErrorCode.RATE_LIMITED, message, detail=detail)
