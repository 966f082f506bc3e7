"""The time to choose a worker as the pool grows, and the memory of the prefix index.

`python -m benchmarks.routing [--rounds N]` prints the time of a decision with 4, 32 and 256
workers, of `submit` to bytes handed to the socket, bytes a block and worker, and, simulated, how
much of the caches two gateways use compared with one.
"""

import dataclasses
import gc
import itertools
import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import click
import zmq

from gateway.pool.dispatch.actions import Action, Assign
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.block_hashes import Prefix, fingerprint
from gateway.pool.tasks.spec import TaskSpec
from protocol.wire.cached import BLOCK_BYTES, MAX_SAID_BLOCKS, Cached
from protocol.wire.codec import pack
from protocol.wire.facts import ModelCard, Timings
from protocol.wire.messages import Done, Envelope, Finish, Generate, Started, TaskKey
from protocol.wire.sampling import SamplingParams

N_SLOTS = 4
N_SYSTEMS, SYSTEM_BLOCKS = 20, 40
TALKS_PER_WORKER = 60
WAITING = 64
KEYS = 1000
"""Tenants of which each has a task in the queue, at the end."""
_START = bytes(BLOCK_BYTES)


@dataclass
class BusyPool:
    """A dispatcher, workers with full caches, and the tasks that run there."""

    n_workers: int
    draw: random.Random = field(default_factory=lambda: random.Random(7))
    now: float = 0.0
    running: list[tuple[int, int, str]] = field(default_factory=list)
    """Task, attempt and worker."""
    talks: list[bytes] = field(default_factory=list)
    n_pairs: int = 0
    """Blocks of all workers."""
    n_tenants: int = 1
    """Tenants that ask in turns."""

    def __post_init__(self) -> None:
        self.pool = Dispatcher(queue_size=100_000)
        self.ids = itertools.count(1)
        systems = [self.draw.randbytes(BLOCK_BYTES * SYSTEM_BLOCKS) for _ in range(N_SYSTEMS)]
        for i in range(self.n_workers):
            self.open(f"w{i}")
        tracemalloc.start()
        for i in range(self.n_workers):
            for _ in range(TALKS_PER_WORKER):
                own = self.draw.randbytes(BLOCK_BYTES * self.draw.randrange(5, 60))
                self.talks.append(self.draw.choice(systems) + own)
                self.say(f"w{i}", self.talks[-1])
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        kept = sum(len(talk) + 41 for talk in self.talks)
        index = self.pool.routing.index
        self.n_pairs = sum(index.n_held(f"w{i}") for i in range(self.n_workers))
        self.bytes_each = (used - kept) / self.n_pairs

    def open(self, key: str) -> None:
        self.pool.worker_hello(key, key, "m")
        card = ModelCard(
            name="m", path="", n_slots=N_SLOTS, n_prefetch=1, n_ctx=8192, n_ctx_total=32768
        )
        self.pool.worker_ready(key, card, self.now)

    def say(self, key: str, chain: bytes) -> None:
        """Let a worker say that it holds a chain."""
        step = BLOCK_BYTES * MAX_SAID_BLOCKS
        for i in range(0, len(chain), step):
            before = chain[i - BLOCK_BYTES : i] if i else _START
            self.pool.cached(key, Cached(added=(before + chain[i : i + step],)))

    def spec(self) -> TaskSpec:
        """The next turn of some conversation."""
        talk = self.draw.choice(self.talks) + self.draw.randbytes(BLOCK_BYTES * 4)
        n_blocks = len(talk) // BLOCK_BYTES
        task_id = next(self.ids)
        return TaskSpec(
            task_id=task_id,
            model="m",
            tenant=f"t{task_id % self.n_tenants}",
            n_tokens=64 * n_blocks,
            prefix=Prefix(talk, n_blocks + 0.5),
        )

    def note(self, actions: Sequence[Action]) -> None:
        """Let workers begin with what they were given."""
        for one in actions:
            if isinstance(one, Assign):
                self.running.append((one.task_id, one.attempt, one.worker))
                self.now += 0.001
                task = self.pool.tasks[one.task_id]
                started = Started(slot=0, n_prompt=task.spec.n_tokens, n_cached=task.n_expected)
                key = TaskKey(one.task_id, one.attempt)
                self.pool.started(one.worker, Envelope(key, started), self.now)
                self.now += 0.002
                self.pool.delta_came(one.worker, key, self.now)

    def end(self) -> tuple[str, Envelope]:
        """Return the end of some running task."""
        at = self.draw.randrange(len(self.running))
        task_id, attempt, worker = self.running.pop(at)
        timings = Timings(predicted_n=50, predicted_ms=500.0)
        done = Done(finish=Finish.EOS, n_prompt=100, n_predicted=50, timings=timings)
        return worker, Envelope(TaskKey(task_id, attempt), done)

    def fill(self, n: int) -> None:
        """Submit `n` tasks."""
        for _ in range(n):
            self.note(self.pool.submit(self.spec(), self.now))


def decisions(pool: BusyPool, rounds: int) -> tuple[list[float], list[float]]:
    """Time submitting and ending, in microseconds."""
    submits, ends = [], []
    for _ in range(rounds):
        worker, envelope = pool.end()
        start = time.perf_counter()
        actions = pool.pool.ended(worker, envelope, pool.now)
        ends.append((time.perf_counter() - start) * 1e6)
        pool.note(actions)
        spec = pool.spec()
        start = time.perf_counter()
        actions = pool.pool.submit(spec, pool.now)
        submits.append((time.perf_counter() - start) * 1e6)
        pool.note(actions)
    return submits, ends


def to_bytes(pool: BusyPool, rounds: int) -> list[float]:
    """Time hashing a prompt of 20 kB, choosing, packing, and handing the frame to ZeroMQ."""
    text = "".join(f"word {i} " for i in range(2000))
    taken = []
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        for socket in (router, dealer):
            socket.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.IDENTITY, b"w")
        router.setsockopt(zmq.SNDHWM, 0)
        router.bind(f"ipc://{folder}/s")
        dealer.connect(f"ipc://{folder}/s")
        dealer.send(b"hello")
        router.recv_multipart()
        for i in range(rounds):
            pool.note(pool.pool.ended(*pool.end(), pool.now))
            task = Generate(prompt=f"{i % 50} {text}", params=SamplingParams())
            start = time.perf_counter()
            prefix = fingerprint(task, "m")
            spec = TaskSpec(task_id=next(pool.ids), model="m", n_tokens=5000, prefix=prefix)
            actions = pool.pool.submit(spec, pool.now)
            sent = dataclasses.replace(task, chain=prefix.chain)
            for frame in pack(i, [Envelope(TaskKey(spec.task_id), sent)]).frames:
                router.send_multipart([b"w", frame], zmq.NOBLOCK)
            taken.append((time.perf_counter() - start) * 1e6)
            dealer.recv()
            pool.note(actions)
        router.close()
        dealer.close()
    return taken


def spread(taken: Sequence[float]) -> str:
    """Write p50 and p99."""
    cuts = statistics.quantiles(taken, n=100)
    return f"p50 {statistics.median(taken):6.0f} us   p99 {cuts[98]:6.0f} us"


def two_gateways() -> tuple[int, int]:
    """Return the cached tokens of one gateway and of two, with four workers and the same load."""
    from benchmarks.two_gateways import cached_tokens

    return cached_tokens(1), cached_tokens(2)


@click.command()
@click.option("--rounds", default=2000, show_default=True, help="Decisions of each kind.")
def main(rounds: int) -> None:
    """Print what choosing costs."""
    measured: list[tuple[str, Callable[[BusyPool], str]]] = [
        ("a slot is free: submit decides", lambda one: spread(decisions(one, rounds)[0])),
        ("submit to bytes out, 20 kB", lambda one: spread(to_bytes(one, rounds))),
    ]
    for n_workers in (4, 32, 256):
        pool = BusyPool(n_workers)
        print(f"{n_workers} workers of {N_SLOTS} slots, {pool.n_pairs} blocks and workers")
        print(f"  index: {pool.bytes_each:.1f} bytes a block and worker")
        pool.fill(n_workers * N_SLOTS * 3 // 4)
        for name, measure in measured:
            print(f"  {name:32} {measure(pool)}")
        pool.fill(n_workers * (N_SLOTS + 1) + WAITING - len(pool.running))
        ends = decisions(pool, rounds)[1]
        name = f"{len(pool.pool.queue)} wait: an end decides"
        print(f"  {name:32} {spread(ends)}")
        pool.n_tenants = KEYS
        pool.fill(KEYS)
        ends = decisions(pool, rounds)[1]
        name = f"{KEYS} keys wait: an end decides"
        print(f"  {name:32} {spread(ends)}")
    one, two = two_gateways()
    print(f"two gateways, four workers: {two / one:.1%} of the cached tokens of one (simulated)")


if __name__ == "__main__":
    main()
