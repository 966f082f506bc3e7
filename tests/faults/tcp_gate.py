"""A gate between workers and a gateway that listens on TCP, with keys of CURVE."""

import asyncio
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.soak.gate import GateAddress, TcpGate


async def open_tcp_gate(folder: Path) -> tuple[TcpGate, Mapping[str, str]]:
    """Open a gate at `{gate_port}` that leads to `{bind_port}`; make keys for both ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        bind_port = int(free.getsockname()[1])
    for role, name in (("gateway", "gateway"), ("worker", "far")):
        await make_keys(folder / "keys", role, name)
    gate = TcpGate(GateAddress(port=bind_port))
    gate_port = (await gate.open()).port
    return gate, {"{bind_port}": str(bind_port), "{gate_port}": str(gate_port)}


async def make_keys(folder: Path, role: str, name: str) -> None:
    """Run `llamapool keygen`."""
    command = "from worker.keygen import keygen; keygen()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", command),
        *(str(folder), "--name", name, "--role", role),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0, f"no keys for {name}"
