"""Keys and addresses between hosts, as the doctor sees them."""

import socket
from pathlib import Path

import pytest
import zmq

from protocol.config.config import GatewayConfig, WorkerConfig
from protocol.curve import public_text, secret_text
from worker.doctor import keys
from worker.doctor.finding import Finding, Level


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    public, secret = zmq.curve_keypair()
    (tmp_path / "own.key").write_text(secret_text(secret.decode()))
    (tmp_path / "own.key").chmod(0o600)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "a.pub").write_text(public_text(public.decode()))
    return tmp_path


def gateway(folder: Path, bind: str = "tcp://127.0.0.1:5555") -> GatewayConfig:
    return GatewayConfig(
        bind=(bind,), curve_key_file=str(folder / "own.key"), worker_keys=str(folder / "others")
    )


def worker(folder: Path, connect: str = "tcp://127.0.0.1:5555") -> WorkerConfig:
    return WorkerConfig(
        name="w",
        connect=(connect,),
        curve_key_file=str(folder / "own.key"),
        gateway_keys=(str(folder / "others"),),
    )


def both(folder: Path) -> list[Finding]:
    return [*keys.gateway_keys(gateway(folder)), *keys.worker_keys(worker(folder))]


def test_good_keys_are_counted(folder: Path) -> None:
    found = both(folder)
    assert [one.level for one in found] == [Level.OK] * 2
    assert "1 worker may connect" in found[0].text and "1 key of gateways" in found[1].text


def test_a_pool_of_one_host_has_nothing_to_check() -> None:
    pool, one = GatewayConfig(), WorkerConfig()
    found = [*keys.gateway_keys(pool), *keys.worker_keys(one), *keys.bound_links(pool)]
    assert [*found, *keys.dialled_links(one)] == []


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda folder: (folder / "own.key").unlink(), "cannot read"),
        (lambda folder: (folder / "own.key").write_text("x"), "is no key file"),
        (lambda folder: (folder / "others" / "a.pub").write_text("x"), "is no key file"),
        (
            lambda folder: (folder / "others" / "a.pub").write_text(secret_text("0" * 40)),
            "holds a secret key",
        ),
    ],
)
def test_a_file_at_fault_is_named(folder: Path, spoil: "object", what: str) -> None:
    assert callable(spoil)
    spoil(folder)
    for one in both(folder):
        assert one.level is Level.FAIL and what in one.text and one.remedy


def test_a_key_that_others_may_read_is_a_warning(folder: Path) -> None:
    (folder / "own.key").chmod(0o644)
    assert [one.level for one in both(folder)] == [Level.WARN, Level.OK] * 2


def test_a_folder_without_keys_lets_nobody_in(folder: Path) -> None:
    (folder / "others" / "a.pub").unlink()
    first, second = both(folder)
    assert first.level is Level.WARN and "no worker gets in" in first.text
    assert second.level is Level.FAIL and "no .pub file of a gateway" in second.text


def test_tcp_without_keys_is_a_failure() -> None:
    found = [
        *keys.gateway_keys(GatewayConfig(bind=("tcp://127.0.0.1:1",))),
        *keys.worker_keys(WorkerConfig(name="w", connect=("tcp://127.0.0.1:1",))),
    ]
    assert [one.level for one in found] == [Level.FAIL] * 2


def test_an_address_of_another_host_cannot_be_bound(folder: Path) -> None:
    (found,) = keys.bound_links(gateway(folder, "tcp://192.0.2.1:5555"))
    assert found.level is Level.FAIL and "192.0.2.1" in found.text
    (found,) = keys.bound_links(gateway(folder))
    assert found.level is Level.OK


def test_a_folder_that_is_not_there_holds_no_socket_for_workers(folder: Path) -> None:
    (found,) = keys.bound_links(GatewayConfig(bind=("ipc:///nonexistent/w.sock",)))
    assert found.level is Level.FAIL and "/nonexistent cannot be written" in found.text
    assert list(keys.bound_links(GatewayConfig(bind=(f"ipc://{folder}/w.sock",)))) == []


def test_whether_somebody_listens_is_told(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = keys.dialled_links(worker(folder, f"tcp://127.0.0.1:{port}"))
        assert found.level is Level.OK
    (found,) = keys.dialled_links(worker(folder, f"tcp://127.0.0.1:{port}"))
    assert found.level is Level.WARN and "cannot be reached" in found.text
