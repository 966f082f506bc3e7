"""Whether the options that GPU users give start, and answer as llama-server does with them."""

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.compare.servers import Side
from benchmarks.gpu.alike import alike
from benchmarks.gpu.requests import TEXTS, ask, serving

FLAGS: dict[str, tuple[str, ...]] = {
    "none": (),
    "all layers": ("-ngl", "all"),
    "two layers": ("-ngl", "2"),
    "no device": ("--device", "none"),
    "one device": ("--device", "CUDA0", "--split-mode", "none", "--main-gpu", "0"),
    "row split": ("-ngl", "all", "--split-mode", "row", "--tensor-split", "1"),
    "cache on the host": ("-ngl", "all", "--no-kv-offload"),
    "no flash attention": ("-ngl", "all", "--flash-attn", "off"),
    "quantized cache": ("-ngl", "all", "-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0"),
    "a tensor on the CPU": ("-ngl", "all", "--override-tensor", r"blk\.0\.ffn=CPU"),
    "dense layers on the CPU": ("-ngl", "all", "--n-cpu-ffn", "2"),
    "no operation offload": ("-ngl", "2", "--no-op-offload"),
    "no map": ("-ngl", "all", "--load-mode", "none", "--no-host"),
    "large batches": ("-ngl", "all", "-b", "4096", "-ub", "2048"),
    "no fit": ("--fit", "off"),
    "fit with 4 GB free": ("--fit-target", "4096", "--fit-ctx", "2048"),
    "sampling on the device": ("-ngl", "all", "--backend-sampling"),
}
_WITHOUT_GPU = ("none", "no device", "quantized cache")
_N_AT_A_TIME = 4
_N_TOKENS = 48


async def _answers(side: Side, binary: Path, model: Path, flags: tuple[str, ...]) -> Any:
    """Return the tokens of two greedy texts; the end of the log of a server that does not start."""
    try:
        async with serving(side, binary, model, *flags) as (url, _):
            return [
                (await asyncio.to_thread(ask, url, text, n_predict=_N_TOKENS))["tokens"]
                for text in TEXTS[:2]
            ]
    except (SystemExit, OSError) as error:
        return str(error)[-600:]


async def _tried(binary: Path, model: Path, name: str, turns: asyncio.Semaphore) -> dict[str, Any]:
    async with turns:
        ours = await _answers(Side.OURS, binary, model, FLAGS[name])
        theirs = await _answers(Side.THEIRS, binary, model, FLAGS[name])
    if isinstance(ours, list) and isinstance(theirs, list):
        return {"is_like_theirs": True, **alike(ours, theirs)}
    is_alike = isinstance(ours, str) and isinstance(theirs, str)
    return {"is_like_theirs": is_alike, "ours": ours, "theirs": theirs}


async def _all(binary: Path, model: Path, names: tuple[str, ...]) -> dict[str, Any]:
    turns = asyncio.Semaphore(_N_AT_A_TIME)
    found = await asyncio.gather(*(_tried(binary, model, name, turns) for name in names))
    return dict(zip(names, found, strict=True))


def try_all(binary: Path, model: Path, *, is_dry: bool) -> dict[str, Any]:
    """Start both servers with each set of options; return how both answered."""
    return asyncio.run(_all(binary, model, _WITHOUT_GPU if is_dry else tuple(FLAGS)))
