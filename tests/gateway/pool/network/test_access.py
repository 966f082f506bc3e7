"""Who gets in over tcp: authorised keys, by their names, until they are revoked."""

import asyncio
import socket
from pathlib import Path

import msgpack
import pytest
import zmq

from gateway.metrics.metrics import Metrics
from gateway.pool.pool import Pool
from protocol.config.config import GatewayConfig
from protocol.curve import public_text, secret_text
from protocol.errors import ConfigError
from protocol.wire import codec
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker, Keys
from tests.gateway.pool.network.fleet import Fleet, answers

pytestmark = pytest.mark.usefixtures("looks_always")


async def test_workers_over_tcp_and_of_this_host_serve_side_by_side(fleet: Fleet) -> None:
    fleet.authorise("gpu-1", keys := fleet.strange_keys())
    async with fleet.worker(keys, "gpu-1/w"), FakeWorker(fleet.local, FakeOptions(name="own")):
        await fleet.until(2)
        await asyncio.gather(*(answers(fleet) for _ in range(8)))
    assert not fleet.metrics.handshakes


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 address")
@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1"])
async def test_ipv6_and_ipv4_reach_a_gateway_that_listens_to_all(tmp_path: Path, host: str) -> None:
    async with Fleet(tmp_path, "::") as fleet:
        fleet.endpoint = f"tcp://{host}:{fleet.port}"
        keys = fleet.keys("a")
        async with fleet.worker(IPv6(*keys) if ":" in host else keys):
            await fleet.until(1)
            await answers(fleet)
        await fleet.until(0)


class IPv6(Keys):
    """Keys of a peer that dials an IPv6 address."""

    def apply(self, socket: "zmq.Socket[bytes]") -> None:
        socket.setsockopt(zmq.IPV6, 1)
        super().apply(socket)


async def failed_handshake(fleet: Fleet, *kinds: str, n: int = 1) -> None:
    await fleet.holds(lambda: sum(fleet.metrics.handshakes[(kind,)] for kind in kinds) >= n)


async def test_an_unknown_key_is_refused_named_and_counted(fleet: Fleet) -> None:
    keys = fleet.strange_keys()
    async with fleet.worker(fleet.keys("good"), "good"), fleet.worker(keys, "bad") as bad:
        await failed_handshake(fleet, "unknown_key")
        await fleet.logged("handshake failed client=127.0.0.1")
        assert keys.public.decode() in next(line for line in fleet.waiter.lines if "failed" in line)
        await fleet.until(1)
        await answers(fleet)
        assert not bad.received


async def test_a_key_is_taken_once_its_file_is_there_and_cut_once_it_is_gone(fleet: Fleet) -> None:
    keys = fleet.strange_keys()
    async with fleet.worker(keys, "w") as refused:
        await failed_handshake(fleet, "unknown_key")
        assert not refused.received
    fleet.authorise("w", keys)
    await fleet.logged("worker keys read")
    async with fleet.worker(keys, "w") as fake, fleet.worker(fleet.keys("v"), "v"):
        await fleet.until(2)
        fleet.revoke("w")
        await fleet.logged("its key was revoked")
        await fleet.until(1)
        n_received = len(fake.received)
        await failed_handshake(fleet, "unknown_key", n=2)  # it dials again, in vain
        await answers(fleet)
        assert len(fake.received) == n_received


async def test_a_file_that_breaks_keeps_its_key_and_says_so(fleet: Fleet) -> None:
    async with fleet.worker(fleet.keys("w"), "w"):
        await fleet.until(1)
        (fleet.folder / "w.pub").write_text("half a fi")
        (fleet.folder / "other.pub").write_text("")
        await fleet.logged("key file unreadable")
        await fleet.logged("other.pub")
        await answers(fleet)
        assert not any("revoked" in line for line in fleet.waiter.lines)


async def test_a_key_may_only_have_the_names_of_its_file(fleet: Fleet) -> None:
    keys = fleet.keys("gpu-1", "gpu-1/*")
    async with fleet.worker(keys, "gpu-2/w") as thief:
        await thief.got(m.Refused)
        assert "the key gpu-1.pub is not for a worker named 'gpu-2/w'" in str(thief.received)
    async with fleet.worker(keys, "gpu-1/w"):
        await fleet.until(1)
        fleet.authorise("gpu-1", keys, "other/*")
        await fleet.until(0)


async def test_the_name_and_epoch_of_another_worker_do_not_throw_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pool.network.reception._REST_S", 0.1)
    async with Fleet(tmp_path) as fleet:
        await _outlives_a_thief(fleet)


async def _outlives_a_thief(fleet: Fleet) -> None:
    async with fleet.worker(fleet.keys("a"), "w") as first:
        await fleet.until(1)
        thief = FakeWorker(fleet.endpoint, FakeOptions(name="w"), fleet.keys("b"))
        thief.epoch, thief.n_connections = first.epoch, 7
        async with thief:
            await fleet.logged("worker waits")
            await thief.got(m.Refused)
        assert first.n_connections == 1
        await answers(fleet)


@pytest.mark.parametrize("kind", ["no_curve", "wrong_gateway_key", "http", "bytes", "half-open"])
async def test_what_is_no_worker_does_not_get_in(fleet: Fleet, kind: str) -> None:
    async with fleet.worker(fleet.keys("good"), "good"):
        await fleet.until(1)
        if kind in ("no_curve", "wrong_gateway_key"):
            keys = Keys(zmq.curve_keypair()[0], *fleet.strange_keys()[1:])
            async with fleet.worker(None if kind == "no_curve" else keys, "bad") as bad:
                # Both ends see that the other has no CURVE: whoever looks first hangs up.
                await failed_handshake(fleet, "protocol", *["unfinished"] * (kind == "no_curve"))
                assert not bad.received
        else:
            with socket.create_connection(("127.0.0.1", fleet.port)) as sock:
                text = {
                    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                    "bytes": bytes(range(256)) * 12,
                }
                sock.sendall(text.get(kind, b""))
            await failed_handshake(fleet, "unfinished" if kind == "half-open" else "protocol")
        await answers(fleet)
        assert fleet.pool.health().n_workers == 1


async def test_a_crowd_of_strangers_costs_one_line_a_minute(fleet: Fleet) -> None:
    async with fleet.worker(fleet.keys("good"), "good"):
        await fleet.until(1)
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", fleet.port)) as sock:
                sock.sendall(bytes(3000))
        await fleet.holds(lambda: sum(fleet.metrics.handshakes.values()) >= 100)
        await answers(fleet)
        assert sum("handshake failed" in line for line in fleet.waiter.lines) <= 2


async def garbage(fake: FakeWorker) -> None:
    for data in (b"", b"\xc1", bytes(64), msgpack.packb([0, [["delta"]]]), b"\xdd\xff\xff\xff\xff"):
        await fake.send_raw(data)


async def test_a_worker_that_writes_nonsense_is_cut_and_blocked(fleet: Fleet) -> None:
    keys = fleet.keys("bad")
    async with fleet.worker(fleet.keys("good"), "good"):
        async with fleet.worker(keys, "bad") as fake:
            await fleet.until(2)
            await garbage(fake)
            await fleet.logged("sent an unreadable frame")
            for _ in range(3):
                await garbage(fake)
            await fleet.logged("peer blocked identity=bad.pub")
            await failed_handshake(fleet, "blocked")
        await answers(fleet)
        unreadable = sum("frame unreadable" in line for line in fleet.waiter.lines)
        assert unreadable <= 12, unreadable


async def test_a_worker_of_this_host_is_blocked_by_its_name(fleet: Fleet) -> None:
    async with FakeWorker(fleet.local, FakeOptions(name="bad")) as fake:
        await fleet.until(1)
        for _ in range(4):
            await garbage(fake)
        await fleet.logged("peer blocked identity=bad")
    async with (
        FakeWorker(fleet.local, FakeOptions(name="bad")) as again,
        FakeWorker(fleet.local, FakeOptions(name="good")),
    ):
        await fleet.until(1)
        await answers(fleet)
        assert not again.received


async def test_an_identity_belongs_to_its_connection(fleet: Fleet) -> None:
    """A peer that takes over the identity of a lost connection cannot speak for it."""
    async with fleet.worker(fleet.keys("a"), "w") as first:
        await fleet.until(1)
        (peer,) = fleet.pool.transport.connections._peers.values()
        part = frame_of(codec.encode(peer.expected, [m.Bye(reason="stolen")]))
        fleet.pool.transport.connections._on_frame(peer.identity, part)
        await answers(fleet)
        assert fleet.metrics.n_late == 1
        assert first.n_connections == 1


def frame_of(data: bytes) -> zmq.Frame:
    """A frame that came over a Unix socket from somebody else."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        pull.bind("ipc://@llamapool-test-identity")
        push.connect("ipc://@llamapool-test-identity")
        push.send(data)
        part = pull.recv(copy=False)
    context.term()
    return part


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "gateway.key").unlink(), "cannot read .*gateway.key"),
        (lambda folder: (folder / "gateway.key").write_text("x"), "gateway.key: is no key file"),
        (
            lambda folder: (folder / "gateway.key").write_text(public_text("0" * 40)),
            "holds a public key",
        ),
        (lambda folder: (folder / "workers" / "a.pub").write_text("x"), "a.pub: is no key file"),
        (
            lambda folder: (folder / "workers" / "a.pub").write_text(secret_text("0" * 40)),
            "a.pub: holds a secret key",
        ),
        (lambda folder: (folder / "workers").rmdir(), "cannot read .*workers"),
    ],
)
async def test_keys_that_cannot_be_read_end_the_start(
    tmp_path: Path, spoil: "object", reason: str
) -> None:
    fleet = Fleet(tmp_path)
    assert callable(spoil)
    spoil(tmp_path)
    with pytest.raises(ConfigError, match=reason):
        await fleet.pool.start()
    await fleet.pool.close()


async def test_an_address_of_another_host_is_named(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    config = GatewayConfig(
        bind=("tcp://192.0.2.1:1234",),
        curve_key_file=str(tmp_path / "gateway.key"),
        worker_keys=str(fleet.folder),
    )
    pool = Pool(config, Metrics())
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:1234"):
        await pool.start()
    await pool.close()
