"""What clients write makes neither labels of metrics nor lines of the log."""

import logging
import re
import urllib.parse
from pathlib import Path

import pytest

from protocol.process.logs import event_text
from tests.gateway.inprocess import Running, running


async def labels(gateway: Running) -> set[str]:
    """Name all series, without their values."""
    text = (await gateway.client.get("/metrics")).text
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


async def test_nothing_that_a_client_writes_becomes_a_label(tmp_path: Path) -> None:
    async with running(tmp_path, metrics=True) as gateway:
        await gateway.add_worker()
        for path in ("/completion", "/nope", "/v1/models"):
            await gateway.client.request("POST", path, json={"prompt": "a"})
            await gateway.client.get(path)
        await labels(gateway)
        before = await labels(gateway)
        for i in range(20):
            odd = f"evil{i}\n"
            headers = {"X-Request-Id": f"evil{i}", "X-Session-Id": f"evil{i}"}
            body = {"prompt": "a", "model": odd, "user": odd, "session_id": odd}
            await gateway.post("/completion", body, headers=headers)
            await gateway.client.get(f"/evil{i}", headers=headers)
            await gateway.client.request(f"EVIL{i}", "/nope")
            await gateway.client.get(f"/v1/models?model=evil{i}")
        after = await labels(gateway)
        assert not [line for line in after if "evil" in line.lower()]
        assert after == before


async def test_a_request_leaves_one_line_whatever_is_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "x\n2026-11-22T10:00:00.000Z ERROR supervisor forged"
    async with running(tmp_path, api_key=("k",)) as gateway:
        await gateway.add_worker()
        with caplog.at_level(logging.INFO):
            body = {"prompt": "a", "model": forged, "user": forged, "cache_salt": forged}
            await gateway.post("/completion", body, headers={"X-Api-Key": "k"})
            await gateway.client.get("/" + urllib.parse.quote(forged))
    lines = [event_text(record) for record in caplog.records]
    assert not [line for line in lines if re.search(r"[\r\n]", line)]
    assert not [line for line in lines if line.startswith("2026")]
