"""B7: peers with a key of the pool that want to harm it, as a worker and as a gateway."""

import asyncio
import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import zmq

from gateway.soak.scene import PoolShape, Scene
from protocol.wire import codec
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from protocol.wire.sharing import Demand, Recall, Returned, Stay, Successor
from tests.faults.case import FaultCase
from tests.faults.groups.handshakes import port_of
from tests.faults.groups.network import FAR_TCP
from tests.faults.tcp_gate import make_keys

_N_THIEVES = 8
_MAX_MIB = 300.0
_LONGEST_S = 1.5
_ROUNDS_S = 8.0
_HUGE = (1 << 63) - 1


async def thieves(scene: Scene) -> None:
    """Let peers with authorised keys do what `tests.hostile.thief` lists."""
    folder = scene.pool.folder / "keys"
    names = [f"thief-{number}" for number in range(_N_THIEVES)]
    for name in names:
        await make_keys(folder, "worker", name)
    await scene.pool.wait_for("worker keys read")
    since, gateway = len(scene.pool.lines), scene.pool.gateways[0]
    before_mib = scene.pool.resident_mib()[gateway]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.hostile.thief", f"tcp://127.0.0.1:{port_of(scene)}"),
        *(str(folder), *names),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    scene.expect(process.returncode == 0, told.decode()[-1000:])
    await scene.load.answers(16)
    grown_mib = scene.pool.resident_mib()[gateway] - before_mib
    scene.expect(grown_mib < _MAX_MIB, f"the gateway grew by {grown_mib:.0f} MiB")
    _expect_unmoved(scene, since)
    gap_s = max(one.longest_gap_s for one in scene.load.outcomes)
    scene.expect(gap_s < _LONGEST_S, f"streams stood still for {gap_s:.1f} s")
    scene.expect(scene.pool.count("peer blocked", since=since) >= 3, "too few were blocked")


def _expect_unmoved(scene: Scene, since: int) -> None:
    for what in (r"worker lost worker=(\S+/)?(w|far) ", "process died", "unexpected exception"):
        n = scene.pool.count(what, since=since)
        scene.expect(n == 0, f"{n} lines: {what}")
    longest = max(map(len, scene.pool.lines))
    scene.expect(longest < 20_000, f"a line of the log has {longest} characters")


async def false_gateway(scene: Scene) -> None:
    """Answer a worker's second endpoint with what no gateway says; the first one serves on."""
    since = len(scene.pool.lines)
    endpoint = f"ipc://{scene.pool.folder}/false.sock"
    n_heard = await asyncio.to_thread(_lie, endpoint)
    scene.expect(n_heard > 10, f"the worker dialled {n_heard} times")
    await scene.load.answers(16)
    _expect_unmoved(scene, since)


def _lie(endpoint: str) -> int:
    """Be a gateway for some seconds; return how often the worker has greeted it."""
    n_hellos, lies = 0, _lies()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.bind(endpoint)
        for _ in range(100_000):
            if not router.poll(int(_ROUNDS_S * 1e3) if not n_hellos else 1500):
                break
            peer, data = router.recv_multipart()
            if not any(isinstance(one, m.Hello) for one in codec.decode(data).messages):
                continue
            n_hellos += 1
            if (frames := next(lies, None)) is None:
                break
            for frame in frames:
                router.send_multipart([peer, frame])
    return n_hellos


def _lies() -> Iterator[list[bytes]]:
    """What is sent after each greeting: twice all of it."""
    welcome = codec.encode(0, [m.Welcome(gateway="false"), m.Opened()])
    for _ in range(2):
        for heartbeat_s in (0.0, -1.0, math.nan, math.inf):
            yield [codec.encode(0, [m.Welcome(gateway="false", heartbeat_s=heartbeat_s)])]
        yield [b""]
        yield [b"\xdd\xff\xff\xff\xff"]
        yield [b"\x91" * 100_000]
        yield [welcome, welcome]
        yield [welcome, codec.encode(1, [m.Ping()] * 10_000), codec.encode(7, [m.Ping()])]
        yield [welcome, codec.encode(1, [Demand(waiting=_HUGE, oldest_s=math.nan)]), b"\xc1"]
        yield [welcome, codec.encode(1, [Returned(n=_HUGE), Recall(n=_HUGE)]), b"\xc1"]
        yield [welcome, codec.encode(1, [Stay(), Successor(), Stay(), Successor()]), b"\xc1"]
        yield [welcome, codec.encode(1, [_task(number) for number in range(500)]), b"\xc1"]
        yield [welcome, codec.encode(1, [_task(1)] * 20), b"\xc1"]


def _task(number: int) -> m.Envelope:
    params = SamplingParams(n_predict=4, temperature=0.0, ignore_eos=True)
    return m.Envelope(m.TaskKey(number), m.Generate(prompt="mine", params=params))


_TWO = PoolShape(n_workers=1).with_far()
_TWO = replace(
    _TWO,
    prepare=None,
    more=_TWO.more.replace(
        '"ipc://{folder}/gate.sock"',
        '"ipc://{folder}/run/workers.sock", "ipc://{folder}/false.sock"',
    ),
)
assert "false.sock" in _TWO.more

CASES = [
    FaultCase(
        name="B7 keys",
        what="workers' keys in wrong hands: floods, 64 MiB frames, absurd cards, names, replays",
        inject=thieves,
        pool=FAR_TCP,
    ),
    FaultCase(
        name="B7 gateway",
        what="a worker's second gateway lies about credits, heartbeats, successors, tasks",
        inject=false_gateway,
        pool=_TWO,
    ),
]
