"""Sends mutants to a pool, with a request in between that must be answered as always."""

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx

from tests.e2e.process import python
from tests.hostile.attack import send
from tests.hostile.health import harm_in_log
from tests.hostile.mutants.judge import faults_of
from tests.hostile.mutants.mutate import mutant
from tests.hostile.pool import TargetPool

_BATCH = 25
"""Mutants between two control requests."""
_SECRET = "admin-secret"
KEY = (b"authorization", b"Bearer " + _SECRET.encode())
HEADERS = {"authorization": f"Bearer {_SECRET}"}
_CONFIG = """
runtime_dir = "{folder}/run"

[gateway]
port = 0
metrics = true
usage_dir = "{folder}/usage"
media_path = "{folder}/media"
api_key_file = ["{folder}/keys.toml"]
predict_route = "/predict"

[[worker]]
name = "w"
count = {count}
n_slots = 4
n_ctx = 512
slot_save_path = "{folder}/slots"
embeddings = true
{more}
"""
_KEYS = """
[[key]]
name = "admin"
sha256 = "{digest}"
scopes = ["infer", "metrics", "admin"]
"""
FAKE = 'backend = "fake"'


def start(folder: Path, more: str = FAKE, count: int = 1) -> TargetPool:
    """Start a pool with one key, an admin's; `more` is more about its workers."""
    for name in ("media", "slots"):
        (folder / name).mkdir(exist_ok=True)
    digest = hashlib.sha256(_SECRET.encode()).hexdigest()
    (folder / "keys.toml").write_text(_KEYS.format(digest=digest))
    config = folder / "pool.toml"
    config.write_text(_CONFIG.format(folder=folder, more=more, count=count))
    pool = TargetPool(python("-m", "worker.cli", "serve", "--config", str(config)))
    pool.folder = folder
    try:
        pool.wait_until_ready()
        pool.client.headers.update(HEADERS)
        assert pool.complete("Hi", n_predict=2).status_code == 200
        # Opens the log and the database.
        assert pool.client.get("/admin/usage").status_code == 200
    except BaseException:
        pool.close()
        raise
    return pool


@dataclass(slots=True)
class Tally:
    """What came of all mutants."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    longest_control_s: float = 0.0

    def __str__(self) -> str:
        counts = " ".join(f"{status}:{n}" for status, n in sorted(self.statuses.items()))
        return (
            f"{sum(self.statuses.values())} sent ({counts}), {len(self.faults)} faults; "
            f"control <= {self.longest_control_s:.2f} s; slowest {self.slowest}"
        )


def send_mutants(
    pool: TargetPool, seeds: Iterable[int], *, bound_s: float, at_once: int = 2
) -> Tally:
    """Send the mutants of these seeds; after each batch, the control request."""
    tally, n_harm, batch = Tally(), 0, list[int]()

    def one(seed: int) -> None:
        case, key = mutant(seed, KEY)
        outcome = send(pool.url, case)
        tally.statuses[outcome.status] += 1
        tally.slowest = max(tally.slowest, (outcome.seconds, str(case)))
        tally.faults += [
            f"{fault}: {outcome}" for fault in faults_of(outcome, key, bound_s=bound_s)
        ]

    def flush() -> None:
        nonlocal n_harm
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(one, batch))
        tally.faults += _controlled(pool, tally)
        harm = harm_in_log(pool)
        tally.faults += [f"log, in {batch[0]} to {batch[-1]}: {line}" for line in harm[n_harm:]]
        n_harm = len(harm)
        batch.clear()

    for seed in seeds:
        batch.append(seed)
        if len(batch) == _BATCH:
            flush()
    if batch:
        flush()
    return tally


def _controlled(pool: TargetPool, tally: Tally) -> list[str]:
    began_at = time.monotonic()
    try:
        # A system prompt that a mutant has set is not what is looked at here.
        answers = [pool.client.get("/health"), pool.complete("Hi", n_predict=2)]
    except httpx.HTTPError as error:
        return [f"control: {type(error).__name__} {error}"]
    tally.longest_control_s = max(tally.longest_control_s, time.monotonic() - began_at)
    return [f"control: {one.status_code} {one.text[:300]}" for one in answers if one.is_error]


class Probe:
    """Asks for `/health` again and again on a thread of its own, and keeps the longest answer."""

    def __init__(self, url: str) -> None:
        self.longest_s = 0.0
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join(60)

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._is_over.wait(0.02):
                began_at = time.monotonic()
                client.get("/livez")
                self.longest_s = max(self.longest_s, time.monotonic() - began_at)
