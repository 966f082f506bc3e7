"""Ordinary streams that run while others attack: each must be whole and never silent for long."""

import threading
import time
from types import TracebackType

import httpx

_TOKENS = 120
_TICK_S = 0.02


class Neighbours:
    """Streams one completion after the other on threads of its own, until left."""

    def __init__(self, url: str, n_streams: int = 2) -> None:
        self.n_whole = 0
        self.faults: list[str] = []
        self.longest_gap_s = 0.0
        self.longest_stall_s = 0.0
        """By how much a thread that only sleeps came late: what the machine itself holds up."""
        self._url = url
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._stream_on, args=(i,), daemon=True)
            for i in range(n_streams)
        ]
        self._threads.append(threading.Thread(target=self._watch_machine, daemon=True))

    def __str__(self) -> str:
        faults = f" faults={self.faults[:3]}" if self.faults else ""
        return f"whole={self.n_whole} longest_gap_s={self.longest_gap_s:.2f}{faults}"

    def __enter__(self) -> "Neighbours":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _watch_machine(self) -> None:
        while not self._is_over.is_set():
            due = time.monotonic() + _TICK_S
            self._is_over.wait(_TICK_S)
            self.longest_stall_s = max(self.longest_stall_s, time.monotonic() - due)

    def _stream_on(self, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            # Named, for a stranger's worker may offer another model for a moment.
            model = client.get("/v1/models").json()["data"][0]["id"]
            while not self._is_over.is_set():
                try:
                    self._stream(client, number, model)
                except httpx.HTTPError as error:
                    self.faults.append(f"{type(error).__name__}: {error}")
                    return

    def _stream(self, client: httpx.Client, number: int, model: str) -> None:
        body = {
            "model": model,
            "prompt": f"Neighbour {number} tells a long story. Once upon a time",
            "n_predict": _TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        last, at, gap_s = "", 0.0, 0.0
        with client.stream("POST", "/completion", json=body) as response:
            if response.status_code != 200:
                self.faults.append(f"status {response.status_code}: {response.read()[:200]!r}")
                return
            for line in response.iter_lines():
                if not line.startswith("data: "):
                    continue
                now = time.monotonic()
                gap_s = max(gap_s, now - at if at else 0.0)
                last, at = line, now
        with self._lock:
            self.longest_gap_s = max(self.longest_gap_s, gap_s)
            if f'"tokens_predicted":{_TOKENS}' in last.replace(" ", ""):
                self.n_whole += 1
            else:
                self.faults.append(f"a stream ended with {last[:300]}")
