"""A running `llamapool serve`: its processes by name, and requests to it."""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.process import LIMIT_S, Process, python

_LOOK_S = 0.02
"""Pause before a test asks again: the processes under test need the core that asking takes."""


class Served(Process):
    """A `Process` whose log tells where it listens and who its workers are."""

    url = ""
    config = Path()
    """File that it was started with, where a fixture wrote it."""
    _client: httpx.Client | None = None

    def wait_until_ready(self) -> "Served":
        """Return once it says that it is ready and the gateway has heard of every worker."""
        found = self.wait_for(r"supervisor ready url=(\S+) \S+ n_workers=(\d+)")
        self.url = found[1]
        self.reconnect()
        return self

    def reconnect(self) -> None:
        """Let go of all connections; the next request makes a new one."""
        if self._client is not None:
            self._client.close()
        self._client = httpx.Client(base_url=self.url, timeout=LIMIT_S)

    @property
    def client(self) -> httpx.Client:
        """Return a client of this server, once it is ready."""
        assert self._client is not None
        return self._client

    def pid_of(self, name: str) -> int:
        """Return the process that was last reported ready under a name, host or not."""
        ready = re.compile(rf"process ready child=(\S+/)?{re.escape(name)} pid=")
        line = next(line for line in reversed(self.lines) if ready.search(line))
        return int(line.rpartition("=")[2])

    def complete(self, prompt: str, **body: Any) -> httpx.Response:
        """Ask for a completion that is not streamed."""
        return self.client.post("/completion", json={"prompt": prompt, "n_predict": 8, **body})

    @contextmanager
    def stream(self, prompt: str, **body: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """Stream a completion; yields its events."""
        body = {"prompt": prompt, "n_predict": 8, "stream": True, **body}
        with self.client.stream("POST", "/completion", json=body) as response:
            assert response.status_code == 200
            yield events(response)

    def is_idle(self) -> bool:
        """Return whether every slot is free."""
        response = self.client.get("/slots")
        return response.status_code == 200 and not any(
            slot["is_processing"] for slot in response.json()
        )

    def close(self) -> None:
        """Close the client and end every process."""
        if self._client is not None:
            self._client.close()
        super().close()


@contextmanager
def serving(*arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Run `llamapool serve` with these arguments; asked to end, it must leave nothing behind."""
    served = Served(python("-m", "worker.cli", "serve", *arguments), env)
    try:
        yield served.wait_until_ready()
        served.signal(signal.SIGTERM)
        assert served.wait() == 0
        assert served.survivors() == []
    finally:
        served.close()


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the data of a stream's events."""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def eventually(is_so: Callable[[], bool], within_s: float = LIMIT_S) -> bool:
    """Ask again until it is so or the time is up."""
    deadline = time.monotonic() + within_s
    while not (result := is_so()) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return result
