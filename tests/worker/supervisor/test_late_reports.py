"""A worker's reports arrive although its supervisor's socket was full for a while."""

import socket
from pathlib import Path

import pytest
import zmq

from protocol.config.config import WorkerConfig
from tests.fakes.full_socket import fill
from tests.worker.router import Gateway
from worker.process import WorkerProcess


def test_ready_comes_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint, path = f"ipc://{tmp_path}/wire", tmp_path / "notify.sock"
    gateway = Gateway(context, endpoint)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(10)
        n_others = fill(path)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        process = WorkerProcess(WorkerConfig(name="w", backend="fake", connect=(endpoint,)))
        gateway.make_ready(process)
        process.turn()
        assert [listener.recv(4096) for _ in range(n_others)] == [b"X_OTHER=1"] * n_others
        process.turn()
        assert any(b"READY=1" in listener.recv(4096) for _ in range(3))
        process._thread.stop()
        process._thread.join(5)
        process.close()
    gateway.close()
    context.destroy(linger=0)
