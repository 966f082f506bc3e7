"""A gateway that listens over tcp, with keys in a folder of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.pool.network import access
from tests.gateway.pool.network.fleet import Fleet


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each handshake look at the keys' files, however short the last look is ago."""
    monkeypatch.setattr(access, "_REFRESH_S", 0.0)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(tmp_path) as one:
        yield one
