"""One gateway hands its endpoint to another, and has to go on after all."""

import asyncio
import signal
from pathlib import Path

import pytest

from gateway import succession
from gateway.succession import Signals, follow_signals
from protocol.process.notify import Notifier
from protocol.wire.sharing import Stay, Successor
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import running, until


async def test_a_gateway_whose_endpoint_is_blocked_serves_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(succession, "_AGAIN_S", 0.05)
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker()
        signals, notifier = Signals(), Notifier(None, "", None)
        followed = asyncio.create_task(follow_signals(gateway.pool, signals, notifier))
        signals.orders.put_nowait(signal.SIGUSR1)
        await worker.got(Successor)
        path = tmp_path / "w.sock"
        path.unlink()
        path.mkdir()
        signals.orders.put_nowait(signal.SIGUSR2)
        await worker.got(Stay)
        await until(lambda: "endpoint not taken back" in caplog.text or followed.done())
        assert not followed.done()
        assert (await gateway.post("/completion", {"prompt": "a", "n_predict": 1})).is_success
        path.rmdir()
        await until(path.is_socket)
        await gateway.add_worker(FakeOptions(name="later"))
        signals.drain.set()
        assert not await followed
