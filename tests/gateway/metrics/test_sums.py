"""One scrape gives the figures of all gateways of a host, also of those that have ended."""

import asyncio
import errno
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.metrics.ended_task import EndedTask
from gateway.metrics.metrics import Metrics
from gateway.metrics.sums import snapshot, with_others
from gateway.metrics.view import WorkerView
from gateway.siblings.host_metrics import HostMetrics
from gateway.siblings.siblings import Siblings
from protocol.wire.facts import Stats


class View:
    """A pool of which one task waits."""

    def workers(self) -> tuple[WorkerView, ...]:
        return (WorkerView(name="w", model="m", state="ready", n_slots=4, n_busy=1),)

    def queue_depths(self) -> dict[str, int]:
        return {"m": 1}

    def n_quarantined(self) -> int:
        return 0

    def tasks_of_keys(self) -> dict[str, tuple[int, int]]:
        return {"ann": (1, 2)}


class OneGateway:
    """The metrics of a gateway and its way to the others."""

    def __init__(self, folder: str) -> None:
        self.siblings = Siblings(folder)
        self.metrics = Metrics()
        self.metrics.kept = lambda: (1, 100)
        self.host = HostMetrics(self.metrics, View(), self.siblings)

    async def open(self) -> "OneGateway":
        await self.siblings.open()
        return self

    def work(self, n: int) -> None:
        for _ in range(n):
            self.metrics.ended(
                EndedTask(model="m", finish="limit", key="ann", n_prompt=10, n_predicted=5)
            )
            self.metrics.of_model("m").ttft.observe(0.5)
            self.metrics.connections.n_open += 1

    async def figures(self) -> dict[str, float]:
        text = (await self.host.render()).decode()
        rows = re.findall(r"^(\w+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in rows}


def names(folder: str, ending: str) -> list[str]:
    return [path.name for path in Path(folder).iterdir() if path.suffix == ending]


@pytest.fixture
def folder() -> Iterator[str]:
    """A longer path than the 107 bytes that the address of a Unix socket may have."""
    path = tempfile.mkdtemp(suffix="x" * 120)
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def test_whoever_is_asked_tells_the_sums_of_all(folder: str) -> None:
    first, second = await OneGateway(folder).open(), await OneGateway(folder).open()
    first.work(3)
    second.work(2)
    for gateway in (first, second):
        found = await gateway.figures()
        assert found["llamapool_tasks_total"] == 5
        assert found["llamapool_time_to_first_token_seconds_count"] == 5
        assert found["llamapool_http_connections"] == 5
        assert found["llamapool_kept_streams"] == 2
        assert found["llamapool_kept_stream_bytes"] == 200
        assert found["llamapool_queue_tasks"] == 2
        assert found["llamapool_workers"] == 1, "both know the same worker"
    first.siblings.close()
    second.siblings.close()


def test_every_counter_with_labels_is_summed() -> None:
    metrics = Metrics()
    for counter in metrics.counters().values():
        counter["a",] += 2
    total = with_others(metrics, [snapshot(metrics, View())])
    assert len(total.counters()) > 10
    assert all(counter["a",] == 4 for counter in total.counters().values())


async def test_those_who_ask_at_once_get_one_text() -> None:
    """Each took the loop for 10 ms, and a client may ask 128 times in one body."""
    gateway = OneGateway("")
    first, *others = [asyncio.ensure_future(gateway.host.render()) for _ in range(4)]
    await asyncio.sleep(0)
    first.cancel()
    texts = await asyncio.gather(*others)
    assert all(text is texts[0] for text in texts)
    gateway.work(1)
    assert (await gateway.figures())["llamapool_tasks_total"] == 1


async def test_what_an_ended_gateway_counted_is_kept_once(folder: str) -> None:
    first, second = await OneGateway(folder).open(), await OneGateway(folder).open()
    first.work(3)
    second.work(2)
    assert (await first.figures())["llamapool_tasks_total"] == 5
    second.work(1)
    second.host.keep()
    second.siblings.close()
    third = await OneGateway(folder).open()
    for gateway in (first, third, first):
        assert (await gateway.figures())["llamapool_tasks_total"] == 6
        assert (await gateway.figures())["llamapool_http_connections"] == 3, "its own are closed"
    assert len(names(folder, ".json")) == 3, "both living ones and all ended ones"
    first.siblings.close()
    third.siblings.close()


async def test_counters_that_cannot_be_written_do_not_break_the_end(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    OneGateway(f"{folder}/never made").host.keep()
    gateway = await OneGateway(folder).open()
    monkeypatch.setattr(Path, "write_bytes", _full)
    gateway.host.keep()
    gateway.siblings.close()


def _full(path: Path, *_: bytes, **__: bool) -> int:
    raise OSError(errno.ENOSPC, "No space left on device", path)


async def test_of_a_killed_gateway_the_last_figures_stand(folder: str) -> None:
    first, second = await OneGateway(folder).open(), await OneGateway(folder).open()
    second.work(2)
    assert (await first.figures())["llamapool_tasks_total"] == 2
    assert second.siblings._server is not None
    second.work(5)
    second.siblings._server.close()  # its socket file stays, as after SIGKILL
    assert (await first.figures())["llamapool_tasks_total"] == 2
    assert names(folder, ".sock") == [f"{first.siblings.name}.sock"]
    first.siblings.close()


async def test_what_a_killed_gateway_has_shown_does_not_fall(folder: str) -> None:
    """A scraper takes a counter that falls by 1 for a restart from zero, and adds all of it."""
    first, second = await OneGateway(folder).open(), await OneGateway(folder).open()
    first.work(3)

    async def late(_: object) -> dict[str, object]:
        first.work(1)  # while the others are asked
        return {}

    second.siblings.respond("metrics", late)
    shown = await first.figures()
    assert first.siblings._server is not None
    first.siblings._server.close()  # its socket file stays, as after SIGKILL
    after = await second.figures()
    assert shown["llamapool_tasks_total"] == after["llamapool_tasks_total"]
    second.siblings.close()


async def test_a_gateway_that_does_not_answer_counts_with_what_it_last_told(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await OneGateway(folder).open(), await OneGateway(folder).open()
    second.work(2)
    assert (await first.figures())["llamapool_tasks_total"] == 2
    monkeypatch.setattr("gateway.siblings.siblings._LIMIT_S", 0.05)
    stuck = asyncio.Event()

    async def never(_: object) -> dict[str, object]:
        await stuck.wait()
        return {}

    second.siblings.respond("metrics", never)
    assert (await first.figures())["llamapool_tasks_total"] == 2
    stuck.set()
    for gateway in (first, second):
        gateway.siblings.close()


async def test_a_kill_between_the_sum_and_its_parts_counts_nothing_twice(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await OneGateway(folder).open(), await OneGateway(folder).open()
    second.work(2)
    second.host.keep()
    second.siblings.close()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _full)
        assert (await first.figures())["llamapool_tasks_total"] == 2
    assert f"{second.siblings.name}.json" in names(folder, ".json")
    third = await OneGateway(folder).open()
    third.work(1)
    third.host.keep()
    third.siblings.close()
    for _ in range(2):
        assert (await first.figures())["llamapool_tasks_total"] == 3
    assert len(names(folder, ".json")) == 2, "its own and that of all ended ones"
    first.siblings.close()


async def test_the_socket_of_a_killed_gateway_goes_when_it_is_dialled(folder: str) -> None:
    first, second = await OneGateway(folder).open(), await OneGateway(folder).open()
    assert second.siblings._server is not None
    second.siblings._server.close()  # its socket file stays, as after SIGKILL
    had_others = first.siblings.has_others
    assert await first.siblings.ask("metrics") == {}
    assert (had_others, first.siblings.has_others) == (True, False)
    assert names(folder, ".sock") == [f"{first.siblings.name}.sock"]
    first.siblings.close()


async def test_a_stopped_gateway_is_logged_once(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each second was a line, and another one while somebody watched."""
    first, second = await OneGateway(folder).open(), await OneGateway(folder).open()
    stuck = asyncio.Event()

    async def never(_: object) -> dict[str, object]:
        await stuck.wait()
        return {}

    second.siblings.respond("metrics", never)
    monkeypatch.setattr("gateway.siblings.siblings._LIMIT_S", 0.01)
    for _ in range(3):
        assert await first.siblings.ask("metrics") == {second.siblings.name: None}
    assert caplog.text.count("gateway does not answer") == 1
    monkeypatch.setattr("gateway.siblings.siblings._QUIET_S", 0.0)
    await first.siblings.ask("metrics")
    assert caplog.text.count("gateway does not answer") == 2
    stuck.set()
    for gateway in (first, second):
        gateway.siblings.close()


async def test_an_unknown_question_harms_nobody(folder: str) -> None:
    gateway = await OneGateway(folder).open()
    path = gateway.siblings._path(gateway.siblings.name)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(json.dumps({"question": "who"}).encode() + b"\n")
    assert await reader.read() == b""
    writer.close()
    gateway.siblings.close()
    assert await Siblings("").ask("metrics") == {}


async def test_the_sums_of_keys_workers_and_processes_are_those_of_all(folder: str) -> None:
    first, second = await OneGateway(folder).open(), await OneGateway(folder).open()
    for gateway in (first, second):
        gateway.work(2)
        gateway.metrics.handshake_failed("blocked")
        gateway.metrics.refused("m", "ann", "rate_limit")
        gateway.metrics.record_stats("w", "m", 2, Stats(n_predicted=10))
    first.metrics.record_stats(
        "w", "m", 1, Stats(n_predicted=100)
    )  # a run that only the first one heard
    for gateway in (first, second):
        found = await gateway.figures()
        assert found["llamapool_key_tasks_total"] == 4
        assert found["llamapool_key_waiting_tasks"] == 2
        assert found["llamapool_key_running_tasks"] == 4
        assert found["llamapool_failed_handshakes_total"] == 2
        assert found["llamapool_refused_tasks_total"] == 2
        assert found["llamapool_predicted_tokens_total"] == 110, "both hear the same worker"
        assert found["llamapool_gateway_resident_bytes"] > 2 * 1024 * 1024
    second.host.keep()
    second.siblings.close()
    found = await first.figures()
    assert found["llamapool_key_predicted_tokens_total"] == 20
    assert found["llamapool_key_running_tasks"] == 2, "those of the ended one are gone"
    first.siblings.close()


async def test_no_counter_falls_when_a_gateway_takes_the_place_of_another(folder: str) -> None:
    old = await OneGateway(folder).open()
    old.work(3)
    old.metrics.record_stats("w", "m", 1, Stats(n_predicted=100))
    old.metrics.record_stats("w", "m", 2, Stats(n_predicted=5))
    before = await old.figures()
    new = await OneGateway(folder).open()
    new.metrics.record_stats("w", "m", 2, Stats(n_predicted=6))
    old.host.keep()
    old.siblings.close()
    for _ in range(2):
        after = await new.figures()
        fallen = [n for n, v in before.items() if n.endswith("_total") and after[n] < v]
        assert not fallen
        assert after["llamapool_predicted_tokens_total"] == 106
    new.siblings.close()


async def test_a_full_disk_hides_no_counters(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await OneGateway(folder).open(), await OneGateway(folder).open()
    first.work(3)
    second.work(2)
    second.host.keep()
    second.siblings.close()

    def full(self: Path, data: bytes) -> None:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        for _ in range(2):
            assert (await first.figures())["llamapool_tasks_total"] == 5
            assert (await first.figures())["llamapool_http_connections"] == 3
    assert [record.message for record in caplog.records] == ["counters not kept"]
    assert not names(folder, ".new")
    assert (await first.figures())["llamapool_tasks_total"] == 5
    first.siblings.close()


async def test_without_its_folder_a_gateway_tells_its_own_counters(folder: str) -> None:
    one = await OneGateway(folder).open()
    one.work(3)
    shutil.rmtree(folder)
    assert (await one.figures())["llamapool_tasks_total"] == 3
    one.siblings.close()
