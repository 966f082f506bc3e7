"""The clients of the normal keys, which send requests all the time."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from benchmarks.fairness.flood import TimedAnswer, ask
from benchmarks.fairness.results import Results, quantile
from gateway.bench.client.connection import Client


class NormalKeys:
    """Counts the outcomes of requests in `results`, while there are any."""

    def __init__(self, url: str, watcher: Client | None) -> None:
        """`watcher` asks the gateway for the times of each answer; None does not ask."""
        self.results: Results | None = None
        self._url = url
        self._watcher = watcher

    async def ask(self, name: str) -> None:
        """Send one request after the other, with the key of this name."""
        client = Client(self._url, name)
        while True:
            results, answer = self.results, await ask(client)
            if results is None:
                continue
            if answer.status == 429:
                results.refused[name] += 1
                continue
            if answer.status != 200:
                raise RuntimeError(f"a request of {name} was answered with {answer.status}")
            results.answers.append(answer)
            results.tokens[name] += answer.n_tokens
            if self._watcher is not None:
                results.parts.append(await _parts(self._watcher, answer))

    async def watch(self, seconds: float, results: Results) -> float:
        """Count for `seconds`; return the p99 of the time to the first token, in seconds."""
        before, self.results = len(results.answers), results
        await asyncio.sleep(seconds)
        self.results = None
        results.seconds += seconds
        return quantile([one.first_s for one in results.answers[before:]], 0.99)


async def _parts(watcher: Client, answer: TimedAnswer) -> Mapping[str, float]:
    """Return the parts of the time to the first token of an answer, in seconds."""
    found = orjson.loads(await watcher.fetch("GET", f"/admin/requests/{answer.request_id}"))
    last: dict[str, Any] = found["requests"][0]["tasks"][0]["attempts"][-1]
    assigned, started, first = (last[f"{one}_s"] for one in ("assigned", "started", "first_token"))
    return {
        "first token": answer.first_s,
        "queue": assigned,
        "to the worker": started - assigned,
        "reading": first - started,
        "HTTP and client": answer.first_s - first,
    }
