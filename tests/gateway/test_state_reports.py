"""Reports of the gateway to the process that started it."""

import asyncio
import socket
from pathlib import Path

import pytest

from gateway import state_reports
from protocol.process.notify import Notifier
from tests.fakes.full_socket import fill


async def test_a_report_that_found_the_socket_full_is_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_reports, "REPORT_S", 0.005)
    path = tmp_path / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.setblocking(False)
        n_others = fill(path)
        notifier = Notifier.from_environ({"NOTIFY_SOCKET": str(path)})
        notifier.send(X_PREPARED=1)
        duty = asyncio.create_task(state_reports.send_late(notifier))
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            found = [await loop.sock_recv(listener, 4096) for _ in range(n_others + 1)]
        assert found[-1] == b"X_PREPARED=1"
        duty.cancel()
        notifier.close()


async def test_without_a_receiver_nothing_goes_on() -> None:
    await asyncio.wait_for(state_reports.send_late(Notifier.from_environ({})), 5)
