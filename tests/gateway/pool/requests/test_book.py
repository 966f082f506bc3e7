"""One line a request, with all that its tasks have come to."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.pool.requests import book as requests_book
from gateway.pool.requests.book import MAX_LATEST, MAX_TASKS, RequestBook
from gateway.pool.requests.record import RequestRecord
from gateway.pool.routing.origin import Origin
from gateway.pool.tasks.stream import TaskStream
from gateway.usage.entry import UsageEntry
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from tests.fakes.echo import FakeOptions
from tests.gateway.rig import Rig, reach


class Kept(Rig):
    """A pool whose requests pay into a list."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.paid: list[UsageEntry] = []
        self.book = self.pool.requests
        self.book.pay = self.paid.append

    def begin(self, request_id: str = "id-1") -> RequestRecord:
        now = asyncio.get_running_loop().time()
        record = self.book.begin(request_id, "POST", "/completion", now)
        record.key = "alice"
        return record

    def ask(self, record: RequestRecord, prompt: str = "a b") -> TaskStream:
        task = m.Generate(prompt=prompt, params=SamplingParams())
        return self.pool.submit(task, model="fake", origin=Origin(tenant="t", record=record))

    @property
    def lines(self) -> list[str]:
        return [line for line in self.waiter.lines if line.startswith("request done ")]


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    rig = Kept(tmp_path)
    async with rig:
        yield rig


async def test_a_request_leaves_one_line_and_pays_once(kept: Kept) -> None:
    async with kept.workers(FakeOptions()) as [fake]:
        record = kept.begin()
        await kept.ask(record).result()
        assert kept.lines == [], "its answer has not ended"
        kept.book.over(record, 200, 0.25)
        (asked,) = [one for one in fake.received if isinstance(one, m.Generate)]
        assert asked.request_id == "id-1"
    (line,) = kept.lines
    assert line.startswith(
        "request done request_id=id-1 key=alice method=POST path=/completion status=200 "
        "duration_s=0.25 model=fake worker=w0 route=load task="
    )
    assert "n_prompt=2 n_predicted=2 queue_s=" in line.replace("n_cached=0 ", "")
    assert " slot_s=" in line and line.endswith("finish=eos")
    (entry,) = kept.paid
    assert (entry.key, entry.model, entry.request_id, entry.finish) == (
        *("alice", "fake", "id-1", "eos"),
    )
    assert (entry.tokens.requests, entry.tokens.prompt, entry.tokens.completion) == (1, 2, 2)


async def test_a_request_whose_client_left_waits_for_the_account_of_its_worker(kept: Kept) -> None:
    async with kept.workers(FakeOptions(free_running=False)) as [fake]:
        record = kept.begin()
        stream = kept.ask(record, "a b c d e f")
        await fake.got(m.Generate)
        await fake.step(2)
        await reach(stream, m.Delta)
        stream.close()
        kept.book.over(record, 499, 0.1)
        assert kept.lines == []
        assert [row["state"] for row in kept.book.find("id-1", 0.0)] == ["settling"]
        await fake.got(m.Cancel)
        await fake.step()
        await kept.logged("request done ")
    assert "status=499" in kept.lines[0] and "finish=cancelled" in kept.lines[0]
    assert kept.paid[0].tokens.completion >= 1


async def test_a_line_about_a_task_has_the_id_of_its_request(kept: Kept) -> None:
    async with kept.workers(FakeOptions()):
        stream = kept.ask(kept.begin())
        line = logging.makeLogRecord({"task": stream.task_id})
        assert kept.pool.request_ids.filter(line)
        assert vars(line)["request_id"] == "id-1"


async def test_a_refused_task_does_not_keep_its_request_open(kept: Kept) -> None:
    record = kept.begin()
    with pytest.raises(Exception, match="not found"):
        kept.ask(record)
    kept.book.over(record, 404, 0.1)
    assert "status=404" in kept.lines[0]
    assert kept.paid == []


async def test_the_end_of_the_gateway_settles_what_runs(kept: Kept) -> None:
    async with kept.workers(FakeOptions(free_running=False)) as [fake]:
        record = kept.begin()
        stream = kept.ask(record, "a b c d")
        await fake.got(m.Generate)
        await fake.step(2)
        await reach(stream, m.Delta)
        await kept.pool.close()
        kept.book.close()
    assert kept.paid[0].tokens.completion >= 1
    assert kept.paid[0].tokens.requests == 1
    kept.book.over(record, 200, 0.1)  # its connection is cut only now
    assert len(kept.paid) == len(kept.lines) == 1


def test_the_latest_are_bounded_and_the_oldest_goes_first() -> None:
    book = RequestBook()
    for number in range(MAX_LATEST + 5):
        record = book.begin(f"id-{number}", "POST", "/completion", 0.0)
        record.model = "m"
        book.over(record, 200, 0.0)
    rows = book.latest()
    assert len(rows) == MAX_LATEST
    assert (rows[0]["request_id"], rows[-1]["request_id"]) == ("id-5", f"id-{MAX_LATEST + 4}")
    assert [row["number"] for row in book.latest(2)] == [MAX_LATEST + 4, MAX_LATEST + 5]
    assert not book.unsettled


def test_requests_of_one_id_are_all_found_the_newest_first() -> None:
    book = RequestBook()
    for status in (500, 200):
        record = book.begin("again", "POST", "/completion", 0.0)
        record.model = "m"
        book.over(record, status, 0.0)
    assert [row["status"] for row in book.find("again", 0.0)] == [200, 500]
    assert list(book.find("other", 0.0)) == []


def test_the_oldest_of_many_tasks_are_forgotten_before_their_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_tasks = MAX_TASKS // 8
    monkeypatch.setattr(requests_book, "finished_tasks", lambda _: [{}] * n_tasks)
    book = RequestBook()
    for _ in range(MAX_LATEST + 5):
        record = book.begin("again", "POST", "/completion", 0.0)
        record.model = "m"
        book.over(record, 200, 0.0)
    lengths = [len(row["tasks"]) for row in book.find("again", 0.0)]
    assert lengths == [n_tasks] * 8 + [0] * (MAX_LATEST - 8)
