"""Chooses the tokens of several rows at once, on threads beside the engine's.

A chain looks at every token of the vocabulary: 0.05 ms for 49,152 of them, 0.4 ms without `top_k`,
and three times that for the vocabularies of larger models. One after the other that is a pause of
the device after every step; llama.cpp's samplers share nothing, and ctypes lets go of the
interpreter while they work. Handing over takes some 0.1 ms, so it is done only where that pays.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import llama_cpp.llama_cpp as lib

HANDOVER_S = 0.0003
"""Seconds to hand work to threads and to wait for them. Source: 0.16 ms for 15 threads on two slow
cores, and a margin."""
_WEIGHT = 0.1
"""Share of a new choice in the moving average, without unit. Source: what a choice takes changes
with the requests' samplers only, so that ten choices may pass before it is known."""


class SampleJob(NamedTuple):
    """A chain, and the position in the batch whose logits it is to choose from."""

    chain: Any
    position: int


Choose = Callable[[Any, int], int]


class SamplerThreads:
    """Owns the threads; used by the engine's thread alone."""

    def __init__(self, choose: Choose, n_threads: int) -> None:
        self._choose = choose
        self._n_threads = n_threads
        self._pool: ThreadPoolExecutor | None = None
        self.one_s = 0.0
        """What one choice takes, a moving average; 0 until one was made."""

    def is_faster(self, n: int) -> bool:
        """Return whether several threads make `n` choices sooner than one."""
        n_threads = min(n, self._n_threads)
        return n_threads > 1 and self.one_s * (n - -(-n // n_threads)) > HANDOVER_S

    def learn(self, elapsed_s: float) -> None:
        """Learn what one choice took, on threads or not."""
        self.one_s += _WEIGHT * (elapsed_s - self.one_s) if self.one_s else elapsed_s

    def choose(self, jobs: Sequence[SampleJob]) -> list[int]:
        """Choose a token for each job, on all threads; in the order of the jobs."""
        pool = self._pool
        if pool is None:
            pool = self._pool = ThreadPoolExecutor(self._n_threads - 1, "sampling")
        n = -(-len(jobs) // self._n_threads)
        parts = [jobs[i : i + n] for i in range(0, len(jobs), n)]
        others = [pool.submit(self._part, part) for part in parts[1:]]
        start = time.perf_counter()
        tokens = self._part(parts[0])
        self.learn((time.perf_counter() - start) / n)
        for other in others:
            tokens += other.result()
        return tokens

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _part(self, jobs: Sequence[SampleJob]) -> list[int]:
        return [self._choose(*job) for job in jobs]


def open_sampler_threads(context: Any, n_threads: int) -> SamplerThreads:
    """Return the threads of a context, of which the engine's own is one."""

    def choose(chain: Any, index: int) -> int:
        return int(lib.llama_sampler_sample(chain, context, index))

    return SamplerThreads(choose, n_threads)
