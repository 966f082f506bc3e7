"""The nine normal keys over HTTP, which send requests all the time."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from benchmarks.fairness.flood import Asked, ask
from benchmarks.fairness.seen import Seen, quantile
from gateway.bench.client.connection import Client


class Nine:
    """What the keys see counts for `seen`."""

    def __init__(self, url: str, watcher: Client | None) -> None:
        """`watcher` asks the gateway where the time of an answer went."""
        self.seen: Seen | None = None
        self._url = url
        self._watcher = watcher

    async def ask(self, name: str) -> None:
        """Ask one question after the other."""
        client = Client(self._url, name)
        while True:
            seen, asked = self.seen, await ask(client)
            if seen is None:
                continue
            if asked.status == 429:
                seen.refused[name] += 1
                continue
            seen.answers.append(asked)
            seen.tokens[name] += asked.n_tokens
            if self._watcher is not None:
                seen.parts.append(await _parts(self._watcher, asked))

    async def watch(self, seconds: float, seen: Seen) -> float:
        """Count for a while; returns the p99 of the time to first token, in seconds."""
        before, self.seen = len(seen.answers), seen
        await asyncio.sleep(seconds)
        self.seen = None
        seen.seconds += seconds
        return quantile([one.first_s for one in seen.answers[before:]], 0.99)


async def _parts(watcher: Client, asked: Asked) -> Mapping[str, float]:
    """Ask the gateway where the time of an answer went."""
    told = orjson.loads(await watcher.fetch("GET", f"/admin/requests/{asked.request_id}"))
    last: dict[str, Any] = told["requests"][0]["tasks"][0]["attempts"][-1]
    assigned, started, first = (last[f"{one}_s"] for one in ("assigned", "started", "first_token"))
    return {
        "first token": asked.first_s,
        "queue": assigned,
        "to the worker": started - assigned,
        "reading": first - started,
        "HTTP and client": asked.first_s - first,
    }
