"""Partitions between network namespaces: a worker of another host, as the kernel sees it."""

import asyncio
import contextlib
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from gateway.soak.network_faults import rejoined
from gateway.soak.requests import FAKE_TEMPLATE
from gateway.soak.scene import PoolShape, Scene
from tests.faults.case import FaultCase, Inject
from tests.faults.groups.network import FAR_TCP
from tests.faults.tcp_gate import open_tcp_gate

HAS_NAMESPACES = os.geteuid() == 0 and shutil.which("ip") is not None

_WORKER = (
    'runtime_dir = "{folder}/far"\n[[worker]]\nname = "far"\nbackend = "fake"\nn_slots = 8\n'
    "n_ctx = 32768\nfake_step_ms = 8\nembeddings = true\n"
    f'chat_template = "{FAKE_TEMPLATE}"\n'
    'connect = ["tcp://{address}:{port}"]\ncurve_key_file = "{folder}/keys/far.key"\n'
    'gateway_keys = ["{folder}/keys/gateway.pub"]\n'
)
_POOL = PoolShape(
    n_workers=1,
    prepare=open_tcp_gate,
    gateway={**FAR_TCP.gateway, "bind": ["tcp://0.0.0.0:{bind_port}"]},
)


@dataclass(frozen=True, slots=True)
class Line:
    """The two ends of a virtual cable, one of them in a namespace of its own."""

    space: str
    near: str
    far: str
    address: str
    """Of the worker."""

    async def take(self, *command: str) -> None:
        """Run `ip`."""
        await _run("ip", *command)

    async def is_up(self, state: str) -> None:
        """Plug the near end in or out."""
        await self.take("link", "set", self.near, state)

    async def is_deaf(self, is_so: bool) -> None:
        """Send what is for the worker to another machine; what it sends arrives."""
        more = ("lladdr", "02:00:00:00:00:01", "nud", "permanent") if is_so else ()
        what = "replace" if is_so else "del"
        await self.take("neigh", what, self.address, *more, "dev", self.near)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, told = await process.communicate()
    assert process.returncode == 0, (command, told)


@asynccontextmanager
async def far_worker(scene: Scene) -> AsyncIterator[Line]:
    """Start a worker in a namespace of its own, and wait until it serves."""
    mark = f"{os.getpid() % 60_000}"
    near, far = (f"10.211.{os.getpid() % 250}.{n}" for n in (1, 2))
    line = Line(f"lp{mark}", f"lpa{mark}", f"lpb{mark}", far)
    worker = None
    await line.take("netns", "add", line.space)
    try:
        await line.take("link", "add", line.near, "type", "veth", "peer", "name", line.far)
        await line.take("link", "set", line.far, "netns", line.space)
        await line.take("addr", "add", f"{near}/30", "dev", line.near)
        await line.take("-n", line.space, "addr", "add", f"{far}/30", "dev", line.far)
        await line.take("-n", line.space, "link", "set", line.far, "up")
        await line.is_up("up")
        since = len(scene.pool.lines)
        worker = await _start(scene, line.space, near)
        await rejoined(scene, since)
        yield line
    finally:
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                worker.terminate()
            await worker.wait()
        with contextlib.suppress(AssertionError):  # it was never made
            await line.take("link", "del", line.near)
        await line.take("netns", "del", line.space)


async def _start(scene: Scene, space: str, address: str) -> asyncio.subprocess.Process:
    folder = scene.pool.folder
    found = re.search(r"tcp://0\.0\.0\.0:(\d+)", (folder / "pool.toml").read_text())
    assert found is not None
    text = _WORKER.replace("{folder}", str(folder)).replace("{address}", address)
    path = folder / "far.toml"
    path.write_text(text.replace("{port}", found[1]))
    (folder / "far").mkdir(mode=0o700)
    return await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", space, sys.executable, "-P", "-m", "worker"),
        *("--config", str(path), "--name", "far"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=(folder / "far.log").open("wb"),
    )


def partitioned(*, one_way: bool) -> Inject:
    """Part the worker from its gateway until it is given up, then let them find each other."""

    async def inject(scene: Scene) -> None:
        async with far_worker(scene) as line:
            await scene.load.answers(8)
            since = len(scene.pool.lines)
            await (line.is_deaf(True) if one_way else line.is_up("down"))
            await scene.pool.wait_for(r"worker lost worker=(\S+/)?far ", 20, since=since)
            await scene.load.answers(8)
            await (line.is_deaf(False) if one_way else line.is_up("up"))
            await rejoined(scene, since)
            await scene.load.answers(8)

    return inject


def _case(name: str, what: str, inject: Inject) -> FaultCase:
    return replace(FaultCase(name=name, what=what, inject=inject), pool=_POOL, needs_root=True)


CASES = (
    [
        _case(
            "B1 netns",
            "the cable of a worker in a namespace of its own is pulled, and plugged in again",
            partitioned(one_way=False),
        ),
        _case(
            "B1 one way",
            "the worker's host hears nothing, while what it says arrives",
            partitioned(one_way=True),
        ),
    ]
    if HAS_NAMESPACES
    else []
)
