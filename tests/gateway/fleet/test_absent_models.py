"""Models that the supervisor has workers of, and of which none has connected."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.pool.workers.slot_map import ExpectedWorker
from gateway.settings import expected_workers
from protocol.config.config import PoolConfig, WorkerConfig
from protocol.process.control import FleetReport, ProcessReport
from tests.fakes.echo import FakeOptions
from tests.gateway.fleet.test_admin_api import Supervisor
from tests.gateway.inprocess import LIMIT_S, Running, running, until


def report(state: str) -> FleetReport:
    """The worker of `fake` serves; that of `big` is in this state."""
    return FleetReport(
        processes=(
            ProcessReport(name="h/w0", model="fake", state="ready"),
            ProcessReport(name="h/w1", model="big", state=state),
        )
    )


async def text_of(gateway: Running) -> str:
    return (await gateway.client.get("/metrics")).text


async def workers_of(gateway: Running, model: str) -> dict[str, float]:
    """Return the rows of `llamapool_workers` of a model by state."""
    text = await text_of(gateway)
    head = f'llamapool_workers{{model="{model}",state="'
    rows = [line.removeprefix(head) for line in text.splitlines() if line.startswith(head)]
    return {row.partition('"')[0]: float(row.split()[-1]) for row in rows}


@asynccontextmanager
async def with_one_of_two(folder: Path) -> AsyncIterator[tuple[Running, Supervisor]]:
    """Serve `fake`, under a supervisor that can tell of `big`."""
    async with (
        Supervisor(folder) as supervisor,
        running(folder, control=supervisor.path, metrics=True) as gateway,
    ):
        await until(lambda: bool(supervisor.lines))
        await gateway.add_worker(FakeOptions(name="h/w0"))
        yield gateway, supervisor


async def tell(gateway: Running, supervisor: Supervisor, state: str) -> dict[str, float]:
    """Report the state of the worker of `big`; return the rows of that model once it is known."""
    supervisor.send(report(state))
    async with asyncio.timeout(LIMIT_S):
        while state.replace(" ", "_") not in (rows := await workers_of(gateway, "big")):
            pass
    return rows


@pytest.mark.parametrize(
    ("state", "message"), [("starting", "Loading model"), ("given up", "could be started")]
)
async def test_no_other_model_answers_in_the_place_of_one_that_is_configured(
    tmp_path: Path, state: str, message: str
) -> None:
    body = {"prompt": "Hello", "n_predict": 4}
    async with with_one_of_two(tmp_path) as (gateway, supervisor):
        await tell(gateway, supervisor, state)
        refused = await gateway.post("/completion", {**body, "model": "big"})
        assert refused.status_code == 503
        assert message in refused.json()["error"]["message"]
        for other in ({}, {"model": "fake"}, {"model": "gpt-4"}):
            assert (await gateway.post("/completion", {**body, **other})).status_code == 200


async def test_the_metrics_count_deaths_of_gateways(tmp_path: Path) -> None:
    async with with_one_of_two(tmp_path) as (gateway, supervisor):
        replaced = ProcessReport(name="gateway", model="", state="ready")
        supervisor.send(FleetReport(processes=(replaced,), n_gateway_restarts=3))
        async with asyncio.timeout(LIMIT_S):
            while "\nllamapool_gateway_restarts_total 3.0" not in await text_of(gateway):
                pass


async def test_before_the_first_report_no_deaths_of_gateways_are_shown(tmp_path: Path) -> None:
    async with running(tmp_path, control=str(tmp_path / "none"), metrics=True) as gateway:
        text = await text_of(gateway)
    assert "\nllamapool_gateway_restarts_total " not in text, "a 0 would make it fall"


async def test_the_metrics_count_workers_that_are_not_connected(tmp_path: Path) -> None:
    async with with_one_of_two(tmp_path) as (gateway, supervisor):
        assert await tell(gateway, supervisor, "quarantined") == {"ready": 0, "quarantined": 1}
        assert await tell(gateway, supervisor, "given up") == {"ready": 0, "given_up": 1}
        assert await workers_of(gateway, "fake") == {"ready": 1}
        await gateway.workers[0].die()
        await until(lambda: not gateway.pool.status.workers())
        assert await workers_of(gateway, "fake") == {"ready": 0, "disconnected": 1}


async def test_nor_does_it_where_workers_are_units_of_their_own(
    tmp_path: Path,
) -> None:
    body = {"prompt": "Hello", "n_predict": 4}
    async with running(tmp_path) as gateway:
        gateway.pool.dispatcher.slots.expect([ExpectedWorker("h/w1", "big", 2)])
        await gateway.add_worker(FakeOptions(name="h/w0"))
        refused = await gateway.post("/completion", {**body, "model": "big"})
        assert refused.status_code == 503
        assert (await gateway.post("/completion", {**body, "model": "any"})).status_code == 200
        await gateway.add_worker(FakeOptions(name="h/w1", model="big"))
        answer = await gateway.post("/completion", {**body, "model": "big"})
        assert answer.json()["model"] == "big"


async def test_nor_does_it_where_several_of_them_have_one_table(tmp_path: Path) -> None:
    table = WorkerConfig(name="w", alias="large, big", count=2, n_slots=-1)
    expected = expected_workers(PoolConfig(worker=(table,)))
    assert [(one.name, one.model) for one in expected] == [("w-1", "big"), ("w-2", "big")]
    async with running(tmp_path) as gateway:
        gateway.pool.dispatcher.slots.expect(expected)
        await gateway.add_worker(FakeOptions(name="h/w0"))
        for name, status in (("big", 503), ("large", 503), ("any", 200)):
            body = {"prompt": "Hello", "n_predict": 4, "model": name}
            assert (await gateway.post("/completion", body)).status_code == status


async def test_an_alias_is_refused_as_long_as_no_model_has_it(tmp_path: Path) -> None:
    body = {"prompt": "Hello", "n_predict": 4, "model": "large"}
    async with running(tmp_path) as gateway:
        expected = [ExpectedWorker(f"h/w{i}", "big", 2, ("large",)) for i in (1, 2)]
        gateway.pool.dispatcher.slots.expect(expected)
        await gateway.add_worker(FakeOptions(name="h/w0"))
        assert (await gateway.post("/completion", body)).status_code == 503
        await gateway.add_worker(FakeOptions(name="h/w1", model="big", aliases=("large",)))
        assert (await gateway.post("/completion", body)).json()["model"] == "big"


async def test_a_model_that_comes_does_not_take_an_alias_from_one_that_serves(
    tmp_path: Path,
) -> None:
    async with with_one_of_two(tmp_path) as (gateway, supervisor):
        await gateway.workers[0].die()
        await until(lambda: not gateway.pool.status.workers())
        await gateway.add_worker(FakeOptions(name="h/w2", aliases=("big",)))
        await tell(gateway, supervisor, "loading")
        answer = await gateway.post("/completion", {"prompt": "Hi", "n_predict": 4, "model": "big"})
        assert answer.json()["model"] == "fake"
