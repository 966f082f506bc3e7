"""Every family on the page: what is counted never falls, and any gateway tells it for all."""

import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.counters import BOUNDS
from gateway.metrics.ended_task import EndedTask
from gateway.metrics.metrics import Metrics
from gateway.metrics.process_usage import ProcessUsage
from gateway.metrics.view import WorkerView
from gateway.siblings.host_metrics import HostMetrics
from gateway.siblings.siblings import Siblings
from protocol.wire.facts import Stats

Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]
KINDS = ("counter", "histogram")
SINCE_ASKED = {"llamacpp:prompt_tokens_seconds", "llamacpp:predicted_tokens_seconds"}
"""Gauges of the time since this gateway was asked last, as in llama-server."""
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("n_prompt", "n_cached", "n_predicted", "n_decode", "n_busy", "n_evicted"), 3),
    **dict.fromkeys(("n_restored", "n_preempted", "n_draft", "n_draft_accepted", "n_drafts"), 2),
    **dict.fromkeys(("decode_s", "sample_s", "step_s", "gap_s", "prompt_s", "predicted_s"), 0.5),
    "n_kv": 64,
    "n_kv_used": 32,
    "n_kv_busy": 16,
    "n_branches": 2,
    "n_host_bytes": 100,
    "n_tokens_max": 5,
    "n_faults": 5,
    "accepted_at": (2, 1),
    "link_lag_s": 0.02,
}
STATS = Stats(**_FIELDS)
TASK = EndedTask(
    model="m", finish="eos", key="ann", queue_s=0.1, n_prompt=9, n_cached=4, n_predicted=5
)


@dataclass
class View:
    """Both gateways know the worker `w`; what waits, runs and is ejected differs."""

    worker: WorkerView = WorkerView(name="w", model="m", state="ready", n_slots=4, n_busy=3)
    depth: int = 0
    quarantined: int = 0
    keys: tuple[str, ...] = ()

    def workers(self) -> tuple[WorkerView, ...]:
        return (self.worker,)

    def queue_depths(self) -> dict[str, int]:
        return {"m": self.depth}

    def n_quarantined(self) -> int:
        return self.quarantined

    def tasks_of_keys(self) -> dict[str, tuple[int, int]]:
        return dict.fromkeys(self.keys, (1, 2))


class Gateway:
    """A gateway that has counted something in every family."""

    def __init__(self, folder: str, view: View) -> None:
        self.metrics, self.view = Metrics(), view
        self.metrics.n_gateway_restarts = lambda: 1  # the supervisor tells all gateways the same
        self.siblings = Siblings(folder)
        self.host = HostMetrics(self.metrics, view, self.siblings)
        self.gauges: Page = {}
        """As they were last told."""

    def work(self, epoch: int, factor: int) -> None:
        metrics = self.metrics
        metrics.ended(TASK)
        for name in BOUNDS:
            getattr(metrics.of_model("m"), name).observe(20 if name[:2] == "n_" else 0.01)
        metrics.refused("m", "ann", "overloaded")
        metrics.routed("m", "load")
        metrics.reused("m", expected=4, found=3)
        metrics.moved("m", "lost", has_started=True)
        metrics.read_again("m", 7)
        metrics.worker_lost("w", "m")
        metrics.dropped(1)
        metrics.handshake_failed("key")
        metrics.event_stream(is_direct=True)
        metrics.fault("tick")
        metrics.http_request("/completion", 200, 0.1)
        metrics.loop_lag.histogram.observe(0.01)
        metrics.loop_lag.longest_s = 0.01 * factor
        metrics.connections.n_open += 1
        metrics.connections.n_closed_idle += 1
        metrics.connections.n_refused += 1
        metrics.kept = lambda: (factor, 100 * factor)
        metrics.record_stats("w", "m", epoch, STATS)

    async def ask(self) -> Page:
        """Return what is counted, and note the gauges."""
        text = (await self.host.render()).decode()
        families = list(text_string_to_metric_families(text))
        self.gauges = samples(families, ("gauge",))
        return samples(families, KINDS)

    def end(self) -> None:
        self.host.keep()
        self.siblings.close()


def samples(families: list[Metric], kinds: tuple[str, ...]) -> Page:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        if family.type in kinds
        for sample in family.samples
    }


def fallen(before: Page, after: Page) -> list[object]:
    return [key for key, value in before.items() if after.get(key, -1) < value]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    usage = ProcessUsage(cpu_s=2.0, resident_bytes=1 << 20)
    monkeypatch.setattr(ProcessUsage, "now", lambda: usage)
    with tempfile.TemporaryDirectory() as path:
        yield path


@pytest.fixture
async def pair(folder: str) -> AsyncIterator[tuple[Gateway, Gateway]]:
    ejected = replace(View().worker, is_ejected=True)
    first = Gateway(folder, View(depth=1, keys=("", "ann")))
    second = Gateway(folder, View(ejected, depth=2, quarantined=1, keys=("", "bob")))
    for gateway in (first, second):
        await gateway.siblings.open()
    yield first, second
    for gateway in (first, second):
        gateway.siblings.close()


async def test_every_family_is_exercised_here(pair: tuple[Gateway, Gateway]) -> None:
    first, _ = pair
    first.work(1, 1)
    page = await first.ask()
    counted = {name for (name, _), value in page.items() if value}
    text = (await first.host.render()).decode()
    for family in text_string_to_metric_families(text):
        if family.type in KINDS:
            assert counted & {sample.name for sample in family.samples}, family.name


async def test_nothing_counted_falls_whoever_is_asked(pair: tuple[Gateway, Gateway]) -> None:
    first, second = pair
    pages: list[Page] = []
    first.work(1, 3)
    pages.append(await first.ask())
    pages.append(await second.ask())  # it has just started
    second.work(1, 1)
    pages += [await first.ask(), await second.ask()]
    second.metrics.forget_worker("w")
    pages.append(await second.ask())
    first.end()  # a reload
    pages.append(await second.ask())
    second.work(2, 1)  # the worker has started again
    pages.append(await second.ask())
    for before, after in itertools.pairwise(pages):
        assert fallen(before, after) == []
    lags = ("llamapool_link_loop_lag_seconds_count", (("model", "m"), ("worker", "w")))
    assert [page[lags] for page in pages] == [1, 1, 2, 2, 2, 2, 3]


async def test_every_gauge_is_that_of_the_host(pair: tuple[Gateway, Gateway]) -> None:
    first, second = pair
    first.work(1, 3)
    second.work(1, 1)
    for gateway in (first, second):
        await gateway.ask()
    told = [
        {key: value for key, value in gateway.gauges.items() if key[0] not in SINCE_ASKED}
        for gateway in (first, second)
    ]
    assert told[0] == told[1]
    found = {(name, *(value for _, value in labels)): n for (name, labels), n in told[0].items()}
    assert found["llamapool_ejected_workers", "m"] == 1
    assert found["llamapool_queue_tasks", "m"] == 3
    assert found["llamapool_gateway_loop_lag_max_seconds",] == 0.03
    assert found["llamapool_gateway_resident_bytes",] == 2 << 20
    running = {key[1]: n for key, n in found.items() if key[0] == "llamapool_key_running_tasks"}
    assert running == {"none": 4, "ann": 2, "other": 2}


async def test_gauges_of_an_ended_gateway_end_with_it(pair: tuple[Gateway, Gateway]) -> None:
    first, second = pair
    first.work(1, 3)
    second.work(1, 1)
    await second.ask()
    first.end()
    second.work(1, 1)
    await second.ask()
    found = {name: value for (name, _), value in second.gauges.items()}
    assert found["llamapool_http_connections"] == 2
    assert found["llamapool_kept_streams"] == 1
    assert found["llamapool_queue_tasks"] == 2
    assert found["llamapool_gateway_loop_lag_max_seconds"] == 0.01
