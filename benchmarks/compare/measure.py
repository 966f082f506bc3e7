"""Runs one workload on one server."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.compare.fresh import new_tokens
from benchmarks.compare.servers import Flags, Server, Side, memory, running
from benchmarks.compare.workloads import Figures, Measured, Workload
from gateway.bench.client.asking import first_model
from gateway.bench.client.connection import Client
from gateway.bench.client.dialects import BenchEndpoint, BenchTarget
from gateway.bench.client.transcript import Role, Transcript
from gateway.bench.drive import BenchLoad, BenchRun, Driver
from gateway.bench.plan import LoadShape
from gateway.bench.summary import as_dict, summarize

_SETTLED_S = 1.5
"""After this our gateway has had the worker's next heartbeat, which carries the counters."""

_WARMUP = 999
"""A seed that no round has: its texts are not asked again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One run."""

    workload: str
    side: Side
    round: int
    figures: Figures
    details: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A server that is up and warm, and the workload that it is asked for."""

    workload: Workload
    side: Side
    server: Server
    target: BenchTarget

    async def loaded(self, number: int, seed: int) -> Result:
        """Run the workload once; `seed` draws its texts."""
        client = Client(self.server.url)
        await asyncio.sleep(_SETTLED_S)
        before = await _counters(client)
        runs = [
            await self._run(_load(self.workload, seed, wave)) for wave in range(self.workload.waves)
        ]
        await asyncio.sleep(_SETTLED_S)
        after = await _counters(client)
        n_new = 0
        if self.workload.counts_new:
            transcripts = runs[0].transcripts
            n_new = await new_tokens(client, self.workload.shape, _seed(seed, 0), transcripts)
        client.close()
        name = "llamacpp:prompt_tokens_total"
        found = dataclasses.replace(
            _summed(runs),
            n_new=n_new,
            n_computed=round(after.get(name, 0) - before.get(name, 0)),
            memory=memory(self.server.pid),
        )
        figures = self.workload.figures(found)
        return Result(self.workload.name, self.side, number, figures, _details(found, runs))

    async def _run(self, load: BenchLoad) -> BenchRun:
        run = await Driver(self.target, self.workload.shape, load).run()
        if run.is_cut_short:  # the driver keeps what there is; a comparison has no use for it
            raise asyncio.CancelledError
        return run


@contextlib.asynccontextmanager
async def opened(
    workload: Workload, side: Side, binary: Path, flags: Flags
) -> AsyncIterator[Subject]:
    """Start a server, let it answer two short requests, end it afterwards."""
    async with running(side, binary, _flags(workload, flags)) as server:
        target = await target_of(server, workload.endpoint, workload.stream)
        await Driver(target, _short(workload), BenchLoad(requests=2, seed=_WARMUP)).run()
        yield Subject(workload, side, server, target)


def _flags(workload: Workload, flags: Flags) -> Flags:
    slots = workload.slots or flags.slots
    return dataclasses.replace(
        flags,
        slots=slots,
        ctx=flags.ctx // flags.slots * slots,
        extra=(*flags.extra, *workload.extra),
        workers=workload.workers,
    )


async def target_of(server: Server, endpoint: BenchEndpoint, stream: bool) -> BenchTarget:
    """Ask a server for answers of full length, the likeliest token each time."""
    client = Client(server.url)
    model = await first_model(client)
    client.close()
    fields: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    if endpoint is BenchEndpoint.EMBEDDINGS:
        fields = {}
    return BenchTarget(url=server.url, endpoint=endpoint, model=model, stream=stream, fields=fields)


def _short(workload: Workload) -> LoadShape:
    """Return what warms a server up and shares no beginning with the load."""
    return dataclasses.replace(workload.shape, shared_prefix=8, turns=1, groups=1)


def _seed(seed: int, wave: int) -> int:
    return seed * 1000 + wave


def _load(workload: Workload, seed: int, wave: int) -> BenchLoad:
    return dataclasses.replace(workload.load, seed=_seed(seed, wave))


async def _counters(client: Client) -> dict[str, float]:
    """Read llama-server's plain `name value` lines, which both write."""
    lines = (await client.get("/metrics")).decode().splitlines()
    pairs = (line.split() for line in lines if line.startswith("llamacpp:"))
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}


def _of(runs: list[BenchRun], role: Role) -> list[Transcript]:
    """Put the waves one behind the other, as if no time had passed between them."""
    found: list[Transcript] = []
    shift_s = end_s = 0.0
    for run in runs:
        wave = [transcript for transcript in run.transcripts if transcript.role is role]
        if found and wave:
            shift_s = end_s - min(transcript.start_s for transcript in wave)
        found += [_shifted(transcript, shift_s) for transcript in wave]
        end_s = max((transcript.end_s for transcript in found), default=0.0)
    return found


def _shifted(transcript: Transcript, by_s: float) -> Transcript:
    return dataclasses.replace(
        transcript,
        start_s=transcript.start_s + by_s,
        end_s=transcript.end_s + by_s,
        arrivals_s=[at + by_s for at in transcript.arrivals_s],
    )


def _summed(runs: list[BenchRun]) -> Measured:
    return Measured(
        load=summarize(_of(runs, Role.LOAD)), background=summarize(_of(runs, Role.BACKGROUND))
    )


def _details(found: Measured, runs: list[BenchRun]) -> dict[str, Any]:
    return {
        "load": as_dict(found.load),
        "background": as_dict(found.background),
        "n_new": found.n_new,
        "n_computed": found.n_computed,
        "pss_mb": found.memory.pss_mb,
        "rss_mb": found.memory.rss_mb,
        "client_cpu_s": sum(run.client_cpu_s for run in runs),
        "client_events": sum(run.n_pieces for run in runs),
        "machine_load": os.getloadavg()[0],
    }
