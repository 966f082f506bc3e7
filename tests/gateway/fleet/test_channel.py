"""The connection to the supervisor: how often it is tried."""

import asyncio
import logging
from pathlib import Path

import pytest

from gateway.fleet.channel import Channel


async def test_a_supervisor_that_is_away_is_asked_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits = list[float]()
    over = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 7:
            over.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    connection = Channel(str(tmp_path / "none.sock"), lambda _line: None, lambda: None)
    with caplog.at_level(logging.ERROR):
        connection.open()
        await over.wait()
    connection.close()
    assert waits == [0.5, 1, 2, 4, 8, 10, 10]
    assert caplog.text.count("supervisor unreachable") == 7
