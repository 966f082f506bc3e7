"""Which worker a task goes to: the one with the least predicted time to the first token.

Pure. It compares workers in seconds: what must be read before, what of the prompt is not cached
there, and the company that the answer would have. Affinity decides between those that are predicted
to be about equally fast, never against it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.pool.actions import RouteReason, TaskSpec
from gateway.pool.routing.load import Throughput, crowding_s, slot_wait_s
from gateway.pool.routing.prefix_index import SessionMap, SessionPlacement
from gateway.pool.routing.worker_estimate import WorkerEstimate
from gateway.pool.workers import LeaseKey, Worker
from protocol.wire.messages import Done, Finish, Started, Terminal

_INDEX_BYTES = 8 * 1024 * 1024
"""For each worker: the blocks of about ten megabytes of text."""
_MAX_SESSIONS = 16384
_MARGIN_S = 0.02
_MARGIN = 0.15
"""Predictions that differ by less than the larger of both are taken for equal."""
_WORTH_WAITING = 0.5
"""Share of the time, and seconds, that waiting for a busy worker must save."""


@dataclass(frozen=True, slots=True)
class Better:
    """A worker without a free slot that would still be faster."""

    worker: str
    patience_s: float
    """What going elsewhere costs: waiting longer than that could never have been right."""


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """Where a task goes, why, and how much of its prompt should be cached there."""

    worker: Worker
    branch: RouteReason = RouteReason.LOAD
    n_cached: int = 0
    better: Better | None = None


@dataclass(frozen=True, slots=True)
class _Offer:
    worker: Worker
    n_blocks: int
    """Of the prompt's blocks, those that should be cached there."""
    n_own: int
    """Those of them that few other prompts share."""
    n_cached: float
    cost_s: float
    is_home: bool
    """The task's session was there last."""


class RoutingPolicy:
    """Chooses among workers; told of everything that happens to them."""

    def __init__(self, *, index_bytes: int = _INDEX_BYTES) -> None:
        self._index_bytes = index_bytes
        self._sites: dict[str, WorkerEstimate] = {}
        self._models: dict[str, Throughput] = {}
        self._unknown = Throughput()
        self._paces: dict[tuple[str, str], Throughput] = {}
        """By model and name: a worker that comes back is as fast as it was."""
        self._sessions = SessionMap(_MAX_SESSIONS)

    def __repr__(self) -> str:
        return f"<RoutingPolicy workers={len(self._sites)} sessions={len(self._sessions)}>"

    @property
    def n_bytes(self) -> int:
        """Memory of the largest index."""
        return max((site.index.n_bytes for site in self._sites.values()), default=0)

    @property
    def known(self) -> set[str]:
        """Keys of the workers of which anything is known."""
        return {*self._sites, *self._sessions.workers}

    def opened(self, worker: Worker) -> None:
        """Take in a worker that is ready, its cache empty."""
        model = self._models.setdefault(worker.model, Throughput())
        pace = self._paces.setdefault((worker.model, worker.name), Throughput(model))
        self._sites[worker.key] = WorkerEstimate(pace, index_bytes=self._index_bytes)

    def lost(self, key: str) -> None:
        """Forget a worker with all that it held."""
        if self._sites.pop(key, None) is not None:
            self._sessions.lost(key)

    def service_s(self, model: str) -> float:
        """Return how long a task of a model has its slot, in the mean of recent ones."""
        return self._models.get(model, self._unknown).service.value

    def choose(self, spec: TaskSpec, workers: Iterable[Worker], now: float) -> RouteChoice | None:
        """Choose a worker that has a credit.

        One that sleeps is woken when the others have no free slot; a prefetch credit is only used
        when there is no free slot at all.
        """
        ready = [worker for worker in workers if worker.is_ready]
        able = [worker for worker in ready if worker.has_credit]
        if not able:
            return None
        offers = self._offers(spec, ready, now)
        rank = min(map(_reluctance, able))
        first = {worker.key for worker in able if _reluctance(worker) == rank}
        best = self._best(spec, [offer for offer in offers if offer.worker.key in first])
        better = _better(best, [offer for offer in offers if not offer.worker.n_free])
        return RouteChoice(best.worker, _branch(best, offers), round(best.n_cached), better)

    def pinned(self, spec: TaskSpec, worker: Worker, now: float) -> RouteChoice:
        """Say what is known of the only worker that a task can go to."""
        (offer,) = self._offers(spec, [worker], now)
        return RouteChoice(worker, RouteReason.PINNED, round(offer.n_cached))

    def best_cached_worker(self, spec: TaskSpec, workers: Iterable[Worker]) -> str:
        """Find the worker that knows most of a prompt; empty if nobody does."""
        known = {w.key: self._sites[w.key].index.match(spec.prefix.blocks) for w in workers}
        best = max(known, key=lambda key: known[key], default="")
        return best if best and known[best] else ""

    def saved_s(self, spec: TaskSpec, best_cached_worker: str, able: Sequence[Worker]) -> float:
        """Return the reading that a worker would save beside those that could go now."""
        site = self._sites.get(best_cached_worker)
        if site is None or any(worker.key == best_cached_worker for worker in able):
            return 0.0
        blocks = spec.prefix.blocks
        n_here = max(self._sites[worker.key].index.match(blocks) for worker in able)
        share = (site.index.match(blocks) - n_here) / spec.prefix.size
        saved_s = share * site.tokens(spec) * site.pace.trust.value / site.pace.reading.value
        return saved_s if saved_s > _MARGIN_S else 0.0

    def assigned(self, choice: RouteChoice, spec: TaskSpec, attempt: int) -> None:
        """Count a task where it goes."""
        key = choice.worker.key
        site = self._sites[key]
        site.assigned(spec, attempt, choice.n_cached)
        home = SessionPlacement(key, round(site.tokens(spec)))
        self._sessions.move(spec.session, home)
        self._sessions.move(spec.label, home)

    def started(self, key: str, message: Started, now: float) -> None:
        """Note that a worker begins with a task."""
        if key in self._sites:
            self._sites[key].started(message, now)

    def read(self, key: str, lease: LeaseKey, now: float) -> None:
        """Note that a task's prompt is read: its first delta has come."""
        if key in self._sites:
            self._sites[key].load.read(lease, now)

    def ended(self, key: str, message: Terminal, now: float) -> None:
        """Note what a task has left in the cache, and how long it took."""
        spec = self._sites[key].ended(message, now) if key in self._sites else None
        if spec is None or not isinstance(message, Done):
            return
        n_left = message.n_past
        if not n_left and message.finish is not Finish.CANCELLED:
            n_left = message.n_prompt + message.n_predicted
        for session in (spec.session, spec.label):
            home = self._sessions.home(session)
            if home is not None and home.worker == key:
                self._sessions.move(session, SessionPlacement(key, n_left))

    def emptied(self, key: str) -> None:
        """Forget all that a worker held: it has unloaded its model."""
        if key in self._sites:
            self._sites[key].index.clear()
            self._sessions.lost(key)

    def evicted(self, key: str, tasks: Iterable[int]) -> None:
        """Forget what the worker's cache has lost."""
        if key in self._sites:
            self._sites[key].evicted(tasks)

    def _offers(self, spec: TaskSpec, workers: Sequence[Worker], now: float) -> list[_Offer]:
        home = self._sessions.home(spec.session)
        sites = [self._sites[worker.key] for worker in workers]
        hits = [site.expected(spec) for site in sites]
        most = max((n_blocks for n_blocks, _ in hits), default=0)
        n_shared, n_sharers = _shared_prefix(spec, sites, hits, most)
        offers = []
        for worker, site, (n_blocks, n_expected) in zip(workers, sites, hits, strict=True):
            n_tokens = site.tokens(spec)
            is_home = home is not None and home.worker == worker.key
            n_cached = n_expected * site.pace.trust.value
            if home is not None and is_home and not most:
                n_cached = float(min(home.n_tokens, n_tokens))
            n_read = n_tokens - n_cached
            if n_blocks < n_shared:  # read once here, it serves the others too
                share = (n_shared - n_blocks) / spec.prefix.size
                n_read -= n_tokens * share * (1 - 1 / n_sharers)
            cost_s = (
                site.load.wait_s(now)
                + slot_wait_s(site.pace, worker.n_slots, len(worker.leases))
                + n_read / site.pace.reading.value
                + crowding_s(site.pace, worker.n_busy)
            )
            n_own = max(0, n_blocks - n_shared)
            offers.append(_Offer(worker, n_blocks, n_own, n_cached, cost_s, is_home))
        return offers

    def _best(self, spec: TaskSpec, offers: Sequence[_Offer]) -> _Offer:
        """Choose by affinity among those that are about as fast as the fastest."""
        least_s = min(offer.cost_s for offer in offers)
        limit_s = least_s + max(_MARGIN_S, _MARGIN * least_s)
        label = self._sessions.home(spec.label)

        def order(offer: _Offer) -> tuple[float, ...]:
            worker = offer.worker
            is_hinted = label is not None and label.worker == worker.key
            overflow = len(worker.leases) - worker.n_slots
            unwanted = (-offer.n_own, not offer.is_home, not is_hinted)
            return (*unwanted, -worker.n_free, overflow, worker.last_used)

        return min((offer for offer in offers if offer.cost_s <= limit_s), key=order)


def _shared_prefix(
    spec: TaskSpec, sites: Sequence[WorkerEstimate], hits: Sequence[tuple[int, float]], most: int
) -> tuple[int, int]:
    """Find the part of a prompt that many share, and their number."""
    for site, (n_blocks, _) in zip(sites, hits, strict=True):
        if most and n_blocks == most:
            return site.index.shared_prefix(spec.prefix.blocks, most)
    return 0, 1


def _reluctance(worker: Worker) -> tuple[bool, bool]:
    return not worker.n_free, worker.is_sleeping


def _branch(best: _Offer, offers: Sequence[_Offer]) -> RouteReason:
    """Say what decided."""
    if best.n_blocks:
        return RouteReason.PREFIX
    if best.is_home:
        return RouteReason.SESSION
    is_known = any(offer.n_blocks or offer.is_home for offer in offers)
    return RouteReason.SPREAD if is_known else RouteReason.LOAD


def _better(best: _Offer, busy: Sequence[_Offer]) -> Better | None:
    """Find a worker without a free slot that holds so much of the prompt that it is faster."""
    if not best.worker.n_free or best.cost_s < _WORTH_WAITING:
        return None
    other = min((one for one in busy if one.n_cached), key=lambda one: one.cost_s, default=None)
    least_s = max(_WORTH_WAITING, _WORTH_WAITING * best.cost_s)
    if other is None or best.cost_s - other.cost_s < least_s:
        return None
    return Better(other.worker.key, best.cost_s)
