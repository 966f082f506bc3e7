"""The other gateways' parts: what goes wrong once is asked again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.feed import siblings as asking
from gateway.feed.siblings import SiblingParts
from gateway.siblings.siblings import Siblings
from tests.gateway.inprocess import until


class Sources:
    """As much of the sources as the question needs."""

    def __init__(self, folder: Path) -> None:
        self.siblings = Siblings(str(folder))


async def test_a_folder_that_cannot_be_read_once_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asking, "_INTERVAL_S", 0.001)
    sources: Any = Sources(tmp_path)
    outcomes: list[Any] = [OSError(24, "Too many open files"), {"two": None}]

    async def ask(_question: str) -> Any:
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    monkeypatch.setattr(sources.siblings, "ask", ask)
    parts = SiblingParts(sources)
    parts.open()
    async with asyncio.timeout(5):
        await until(lambda: parts.silent == ["two"])
    parts.close()
    assert caplog.text.count("gateways not asked") == 1
