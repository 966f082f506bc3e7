"""What a pool does while another program holds the GPU's memory, and after it."""

import asyncio
import contextlib
import ctypes
import tempfile
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.compare.servers import Side
from benchmarks.gpu.kit import ALL_LAYERS
from benchmarks.gpu.requests import ask, serving

_LEFT_BYTES = 8 << 20
"""Bytes of the GPU that stay free: less than a long prompt needs."""
_BLOCK_BYTES = 1 << 20
"""Smallest piece that is taken."""
_WAIT_S = 60.0
"""Seconds in which the pool must answer once the memory is free."""
_ANSWER_S = 6.0
"""Seconds after which a client gives up."""
_LONG = "word " * 3000


@contextlib.contextmanager
def memory_taken() -> Iterator[int]:
    """Hold nearly all free memory of the first GPU; yields the bytes."""
    cuda = ctypes.CDLL("libcudart.so.13")
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    held, n_bytes = [], 0
    _check(cuda.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)))
    size = free.value - _LEFT_BYTES
    while size >= _BLOCK_BYTES:
        pointer = ctypes.c_void_p()
        if cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)):
            size //= 2  # the driver keeps some for itself
            continue
        held.append(pointer)
        n_bytes += size
    try:
        yield n_bytes
    finally:
        for pointer in held:
            cuda.cudaFree(pointer)


def _check(code: int) -> None:
    if code:
        raise OSError(f"CUDA's runtime says {code}")


def _answer(url: str, text: str) -> str:
    """Return `whole`, or what was answered instead."""
    try:
        tokens = ask(url, text, n_predict=32, timeout_s=_ANSWER_S)["tokens"]
        return "whole" if len(tokens) == 32 else f"{len(tokens)} tokens"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read(300).decode(errors='replace')}"
    except OSError as error:
        return repr(error)


async def _seconds_until_whole(url: str) -> float:
    """Return the seconds until an answer comes whole; -1 if none does in a minute."""
    start = time.monotonic()
    while time.monotonic() - start < _WAIT_S:
        if await asyncio.to_thread(_answer, url, "The sea") == "whole":
            return time.monotonic() - start
        await asyncio.sleep(0.2)
    return -1.0


async def _run(model: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        found = await _during_and_after(model, log)
        lines = log.read_text(errors="replace").splitlines()
    found["log"] = [line[:300] for line in lines if " supervisor " in line][-20:]
    return found


async def _during_and_after(model: Path, log: Path) -> dict[str, Any]:
    flags = ("-ngl", str(ALL_LAYERS), "--log-file", str(log))
    async with serving(Side.OURS, Path(), model, *flags) as (url, _):
        with memory_taken() as n_bytes:
            during = [await asyncio.to_thread(_answer, url, text) for text in ("The sea", _LONG)]
            many = [asyncio.to_thread(_answer, url, f"{n} {_LONG[:2000]}") for n in range(8)]
            during += await asyncio.gather(*many)
        return {
            "taken_bytes": n_bytes,
            "during": during,
            "again_after_s": await _seconds_until_whole(url),
        }


def squeeze(model: Path) -> dict[str, Any]:
    """Take the GPU's memory from a running pool, ask it, give the memory back, ask again."""
    return asyncio.run(_run(model))
