"""The real Prometheus scrapes a pool under load and is asked everything that we would ask it."""

import asyncio
import math
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running
from tests.gateway.pool.network.fleet import free_port
from tests.monitoring.expressions import RULES, alerts, panels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: Debian has it"),
]

BODY = {"prompt": "some words to say again", "n_predict": 8, "ignore_eos": True}
_SCRAPES = 4
_OF_TIMES = {
    *("LlamapoolQueueLong", "LlamapoolFirstTokenSlow", "LlamapoolStreamsStutter"),
    "LlamapoolGatewayLate",
}
"""Alerts about times: on a busy machine they may be right."""
_NOT_USED = {
    *("LlamapoolCertificateExpires", "LlamapoolWorkerTurnedAway", "LlamapoolWorkerQuarantined"),
    "LlamapoolRequestsFail",
}
"""Alerts about TLS, keys, a supervisor and failures, which such a pool has not."""
_NO_VALUE = {
    "Refused tasks",  # nothing is refused here
    "Answers that went on at another worker",  # nothing dies
    "Pause of a continued answer",
    "Time until a cancelled task is gone",
    "Share of the time of steps in llama_decode",  # fake workers count neither time nor cells
    "Cells in use",
}
"""Panels that show no number of such a pool: nothing is divided by nothing."""


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run Prometheus, which scrapes this address twice a second."""
    port = free_port()
    config = (RULES.parent / "prometheus.yml").read_text(encoding="utf-8")
    config = config.replace("127.0.0.1:8080", target).replace(
        "scrape_interval: 5s", "scrape_interval: 500ms"
    )
    config = config.replace("evaluation_interval: 15s", "evaluation_interval: 200ms")
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(RULES, folder)
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
        stdout=sys.stderr,
        stderr=sys.stderr,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def ask(client: httpx.AsyncClient, expr: str) -> list[Any]:
    """Return the series of an expression now."""
    response = await client.get("/api/v1/query", params={"query": expr})
    body = response.json()
    assert body["status"] == "success", f"{expr}: {body}"
    found: list[Any] = body["data"]["result"]
    return found


async def scraped(client: httpx.AsyncClient, n: int) -> None:
    """Wait until the pool was scraped n times more."""
    expr = 'count_over_time(up{job="llamapool"}[1h])'

    async def is_ready() -> bool:
        try:
            return (await client.get("/-/ready")).status_code == 200
        except httpx.HTTPError:  # it does not listen yet
            return False

    async def count() -> int:
        found = await ask(client, expr)
        return int(found[0]["value"][1]) if found else 0

    async with asyncio.timeout(60):
        while not await is_ready():  # noqa: ASYNC110 - Prometheus announces nothing
            await asyncio.sleep(0.1)
        wanted = await count() + n
        while await count() < wanted:  # noqa: ASYNC110 - Prometheus announces nothing
            await asyncio.sleep(0.1)


async def load(gateway: Running) -> None:
    """Stream and complete until this is cancelled."""
    while True:
        await gateway.events("/v1/chat/completions", chat())
        await gateway.post("/completion", BODY)


def chat() -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "say it again"}], "max_tokens": 8}


def numbers(series: Iterable[Any]) -> list[float]:
    """Return the values that are numbers."""
    values = [float(one["value"][1]) for one in series]
    return [value for value in values if not math.isnan(value)]


def measured(expr: str) -> str:
    """Return what an alert compares, without its limits."""
    expr = re.split(" and on | or absent", expr)[0]
    found = re.fullmatch(r"(.*?) (?:>|<|==) [0-9.]+", expr)
    assert found, f"no limit in {expr}"
    return found[1]


async def test_every_alert_and_every_panel_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path, metrics=True) as gateway:
        for name in "ab":
            options = FakeOptions(name=name, n_slots=2, step_s=0.05)
            await gateway.add_worker(options)
        loads = [asyncio.create_task(load(gateway)) for _ in range(6)]
        try:
            target = gateway.url.removeprefix("http://")
            async with prometheus(tmp_path, target) as client:
                await scraped(client, _SCRAPES)
                for alert, expr in alerts().items():
                    firing = await ask(client, expr)
                    assert not firing or alert in _OF_TIMES, f"{alert} fires at a pool that is well"
                    known = numbers(await ask(client, measured(expr)))
                    assert known or alert in _NOT_USED, alert
                for title, expr in panels():
                    known = numbers(await ask(client, expr))
                    assert known or title in _NO_VALUE, f"{title}: {expr}"
                await _check_rules(client)
        finally:
            for one in loads:
                one.cancel()


async def _check_rules(client: httpx.AsyncClient) -> None:
    """Prometheus runs the rules itself and finds nothing wrong with them."""
    groups = (await client.get("/api/v1/rules")).json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == alerts().keys()
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
    assert not any(rule.get("lastError") for rule in rules)
