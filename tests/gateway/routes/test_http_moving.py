"""Requests whose workers die or fail before their clients have seen anything."""

import asyncio
from pathlib import Path

from protocol.errors import ErrorCode
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.inprocess import Running, running

BODY = {"prompt": "one two three four"}


def slow(name: str) -> FakeOptions:
    return FakeOptions(name=name, free_running=False, n_slots=1, n_prefetch=0)


async def busy(gateway: Running, body: object) -> tuple["asyncio.Task[int]", FakeWorker]:
    """Ask, and return the only worker there is, two steps into the answer."""
    worker = await gateway.add_worker(slow("a"))

    async def ask() -> int:
        response = await gateway.post("/completion", body)
        assert response.json()["content"] == "one two three four"
        return response.status_code

    asked = asyncio.create_task(ask())
    await worker.got(m.Generate)
    await worker.step(3)
    return asked, worker


async def test_a_whole_answer_begins_anew_when_its_worker_dies_in_the_middle(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as gateway:
        asked, worker = await busy(gateway, BODY)
        await gateway.add_worker(FakeOptions(name="b"))
        await worker.die()
        assert await asked == 200


async def test_a_request_that_two_workers_failed_is_not_to_be_sent_again(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        for name in "abc":
            worker = await gateway.add_worker(FakeOptions(name=name))
            code = ErrorCode.UNAVAILABLE
            worker.engine.fail_next = m.Failed(code=code, message="broken")
        response = await gateway.post("/completion", BODY)
        assert response.status_code == 500
        assert response.headers["x-should-retry"] == "false"
        assert "2 workers failed with this request" in response.json()["error"]["message"]
        assert sum(worker.engine.fail_next is None for worker in gateway.workers) == 2
