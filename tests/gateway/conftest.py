"""Fixtures of the HTTP tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.inprocess import Running, running


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    """One gateway with one worker of two slots that echoes as fast as it goes."""
    async with running(tmp_path, metrics=True) as one:
        await one.add_worker()
        yield one
