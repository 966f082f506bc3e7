"""Limits of keys hold for all gateways of a host, and go on in the gateway that starts."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from gateway import usage_today
from gateway.keys.api_key import KeyLimits
from gateway.metrics.metrics import Metrics
from gateway.pool.pool import Pool
from gateway.pool.tenants.allowances import Refund
from gateway.pool.tenants.tenant_concurrency import ConcurrencyElsewhere
from gateway.siblings.shared_limits import SharedLimits
from gateway.siblings.siblings import Siblings
from gateway.usage.entry import Tokens
from gateway.usage_today import used_today
from protocol.config.config import GatewayConfig
from protocol.errors import TaskError
from tests.gateway.dispatching import task
from tests.gateway.inprocess import until

LIMITS = KeyLimits(requests_per_minute=3, tokens_per_day=1000)


class Gateway:
    """The parts of a gateway that share limits."""

    def __init__(self, folder: Path, name: str, today: int = 0) -> None:
        self.pool = Pool(GatewayConfig(), Metrics())
        self.siblings = Siblings(str(folder))
        self.siblings.name = name
        self.shared = SharedLimits(self.pool, self.siblings, lambda: {"x": today} if today else {})

    async def start(self) -> None:
        await self.siblings.open()
        await self.take_over()

    async def take_over(self) -> None:
        await self.shared.start()
        self.shared.close()  # the test says when it asks

    async def hear(self) -> None:
        await self.shared._exchange(is_first=False)

    def left(self) -> tuple[int, int]:
        found = self.pool.dispatcher.allowances.remaining("x", LIMITS)
        return found["requests"].remaining, found["tokens-day"].remaining


async def test_what_one_gateway_counts_counts_at_the_others_once(tmp_path: Path) -> None:
    one, two = Gateway(tmp_path / "s", "one", today=100), Gateway(tmp_path / "s", "two", today=7)
    await one.start()
    assert one.left() == (3, 900)
    one.pool.dispatcher.allowances.request("x", LIMITS)
    await two.start()  # it takes all from the first, and nothing from the kept usage
    assert two.left() == (2, 900)
    await one.hear()
    two.pool.dispatcher.allowances.request("x", LIMITS)
    one.pool.dispatcher.allowances.request("x", LIMITS)
    for _ in range(3):
        await one.hear()
        await two.hear()
    assert one.left() == two.left() == (0, 900)
    with pytest.raises(TaskError, match="3 requests a minute"):
        one.pool.dispatcher.allowances.request("x", LIMITS)
    one.siblings.close()
    await two.hear()
    assert two.left() == (0, 900)  # what an ended gateway has counted stays
    two.siblings.close()


async def test_what_one_gateway_gives_back_is_given_back_at_the_others(tmp_path: Path) -> None:
    one, two = Gateway(tmp_path / "s", "one"), Gateway(tmp_path / "s", "two")
    await one.start()
    await two.start()
    await one.hear()
    allowances = one.pool.dispatcher.allowances
    spec = dataclasses.replace(task(1, tenant="x"), limits=LIMITS, n_answer=500)
    allowances.reserve(spec, 0)
    await two.hear()
    assert one.left() == two.left() == (3, 499)
    allowances.settle("x", 1, 21)
    for _ in range(2):
        await two.hear()
    assert one.left() == two.left() == (3, 979)
    one.siblings.close()
    two.siblings.close()


async def test_what_was_told_and_did_not_arrive_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Gateway(tmp_path / "s", "one"), Gateway(tmp_path / "s", "two")
    await one.start()
    await two.start()
    allowances, ask = one.pool.dispatcher.allowances, two.siblings._ask

    async def lost(name: str, line: bytes) -> tuple[bool, None]:
        await ask(name, line)
        return True, None  # as after a time-out

    allowances.reserve(dataclasses.replace(task(1, tenant="x"), limits=LIMITS, n_answer=500), 0)
    monkeypatch.setattr(two.siblings, "_ask", lost)
    await two.hear()
    allowances.request("x", LIMITS)
    allowances.settle("x", 1, 21)
    await two.hear()
    monkeypatch.setattr(two.siblings, "_ask", ask)
    assert two.left() == (3, 1000)
    for _ in range(3):
        await two.hear()
    assert one.left() == two.left() == (2, 979)
    one.siblings.close()
    two.siblings.close()


async def test_gateways_that_start_at_once_all_know_the_day(tmp_path: Path) -> None:
    one, two = Gateway(tmp_path / "s", "one", today=100), Gateway(tmp_path / "s", "two", today=100)
    await one.siblings.open()
    await two.siblings.open()
    await asyncio.gather(one.take_over(), two.take_over())
    assert one.left() == two.left() == (3, 900)
    three = Gateway(tmp_path / "s", "three", today=7)
    await three.start()
    assert three.left() == (3, 900)
    for gateway in (one, two, three):
        gateway.siblings.close()


async def test_answers_at_once_are_shared(tmp_path: Path) -> None:
    one, two = Gateway(tmp_path / "s", "one"), Gateway(tmp_path / "s", "two")
    await one.start()
    await two.start()
    concurrency = one.pool.dispatcher.queue.concurrency
    concurrency._n_tasks["x"] = 2
    await two.hear()
    assert two.pool.dispatcher.queue.concurrency.elsewhere == {"x": ConcurrencyElsewhere(2, 1)}
    del concurrency._n_tasks["x"]
    await two.hear()
    assert two.pool.dispatcher.queue.concurrency.elsewhere == {}
    one.siblings.close()
    two.siblings.close()


async def test_a_gateway_that_was_silent_for_minutes_is_told_all(
    tmp_path: Path,
) -> None:
    one, two, three = (Gateway(tmp_path / "s", name) for name in ("one", "two", "three"))
    for gateway in (one, two, three):
        await gateway.start()
    allowances = one.pool.dispatcher.allowances
    spec = dataclasses.replace(task(1, tenant="x"), limits=LIMITS, n_answer=500)
    allowances.reserve(spec, 0)
    one.shared._askers["two"].asked_at -= 300
    for gateway in (three, one):
        await gateway.hear()
    allowances.settle("x", 1, 21)
    await two.hear()
    assert two.left()[1] == one.left()[1] == 979
    for gateway in (one, two, three):
        gateway.siblings.close()


async def test_what_a_gateway_uses_before_another_has_asked_it_counts_there(tmp_path: Path) -> None:
    one, two = Gateway(tmp_path / "s", "one"), Gateway(tmp_path / "s", "two")
    await one.start()
    await two.start()
    two.pool.dispatcher.allowances.request("x", LIMITS)
    await one.hear()
    assert one.left() == two.left() == (2, 1000)
    one.siblings.close()
    two.siblings.close()


async def test_gateways_that_have_ended_are_forgotten(tmp_path: Path) -> None:
    one, two = Gateway(tmp_path / "s", "one"), Gateway(tmp_path / "s", "two")
    await one.start()
    await two.start()
    assert set(one.shared._askers) == {"two"}
    two.siblings.close()
    await one.hear()
    assert not one.shared._askers
    one.siblings.close()


async def test_refunds_for_a_silent_gateway_take_no_room_by_the_second(tmp_path: Path) -> None:
    one, two = Gateway(tmp_path / "s", "one"), Gateway(tmp_path / "s", "two")
    await one.start()
    await two.start()
    asker, start = one.shared._askers["two"], asyncio.get_running_loop().time()
    asker.asked_at = start - 200
    for age in range(150):
        one.shared._refund(Refund("x", 2, start - age, 1))
    await one.hear()
    assert asker.refunds == {("x", 0, 1): 300}
    one.siblings.close()
    two.siblings.close()


async def test_answers_of_a_gateway_that_is_silent_go_on_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Gateway(tmp_path / "s", "one"), Gateway(tmp_path / "s", "two")
    await one.start()
    await two.start()
    one.pool.dispatcher.queue.concurrency._n_tasks["x"] = 2
    await two.hear()

    async def silent(name: str, line: bytes) -> tuple[bool, None]:
        return True, None  # as after a time-out

    with monkeypatch.context() as patch:
        patch.setattr(two.siblings, "_ask", silent)
        for _ in range(2):
            await two.hear()
            elsewhere = two.pool.dispatcher.queue.concurrency.elsewhere
            assert elsewhere == {"x": ConcurrencyElsewhere(2, 1)}
    one.siblings.close()
    await two.hear()
    assert two.pool.dispatcher.queue.concurrency.elsewhere == {}
    two.siblings.close()


async def test_an_exchange_that_goes_on_failing_is_one_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, n_asked, failing = Gateway(tmp_path / "s", "one"), 0, set(range(1, 4)) | {6}
    await gateway.start()
    others = gateway.siblings._others

    def asked() -> list[str]:
        nonlocal n_asked
        n_asked += 1
        if n_asked in failing:
            raise OSError(24, "Too many open files")
        return others()

    monkeypatch.setattr(gateway.siblings, "_others", asked)
    monkeypatch.setattr("gateway.siblings.shared_limits._EVERY_S", 0.001)
    asking = asyncio.create_task(gateway.shared._run())
    await until(lambda: n_asked > 7)
    asking.cancel()
    assert [record.message for record in caplog.records] == ["unexpected exception"] * 2
    gateway.siblings.close()


def test_the_day_goes_on_with_the_usage_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert used_today("") == {}
    assert used_today(str(tmp_path)) == {}
    kept = {"x": Tokens(prompt=100, cached=50, completion=20), "": Tokens(prompt=9)}
    monkeypatch.setattr(usage_today, "spent_on", lambda folder, day: kept)
    assert used_today(str(tmp_path)) == {"x": 75}
