"""Which worker a task goes to: the one where it costs all clients the least time.

Pure. It compares workers in seconds: what they have to read before, what of the prompt is not in
their cache, and how much their running streams slow the answer down. Reading counts once for the
task and once for each task that runs there, because all of them wait for it. Affinity decides only
between workers that are predicted to cost about the same.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from operator import attrgetter

from gateway.pool.routing.index.prefix_index import Holders, PrefixIndex
from gateway.pool.routing.load import Throughput
from gateway.pool.routing.load_order import PREFETCH, LoadOrder, ModelWorkers, rank_of
from gateway.pool.routing.offers import Offer, make_offers
from gateway.pool.routing.sessions import SessionMap, SessionPlacement
from gateway.pool.routing.worker_estimate import WorkerEstimate
from gateway.pool.tasks.attempt import Attempt, Candidate
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import RouteReason, Task
from gateway.pool.workers.worker import Worker
from protocol.wire.cached import Cached
from protocol.wire.messages import Done, Finish, Terminal

_MAX_SESSIONS = 16384
"""Sessions remembered; the one unused longest is forgotten first."""
_MAX_CANDIDATES = 4
"""Compared workers that an attempt records, for `/admin/requests`."""
_N_COMPARED = 5
"""In a larger pool, compare this many workers with the longest prefix and as many of least load."""
_SMALL_POOL = 16
"""With at most this many workers of a model, all are compared."""
_MARGIN_S = 0.02
_MARGIN_SHARE = 0.15
"""Predictions that differ by less than the larger of both, seconds and share, count as equal."""
_MIN_SAVED_S = 0.5
_MIN_SAVED_SHARE = 0.5
"""Waiting for a busy worker must save at least the larger of both, seconds and share."""


@dataclass(frozen=True, slots=True)
class BetterWorker:
    """A worker without a free slot that would still be faster."""

    worker: str
    """Its key."""
    max_wait_s: float
    """Longest time to wait for it: what going elsewhere costs."""


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """Where a task goes, why, and how much of its prompt should be cached there."""

    worker: Worker
    reason: RouteReason = RouteReason.LOAD
    n_cached: int = 0
    """Tokens, by the index and the worker's past hit ratio."""
    n_blocks: int = 0
    """Blocks, by the index alone."""
    better: BetterWorker | None = None
    predicted_s: float = 0.0
    """Time to the first token; 0 is unknown."""
    offers: Sequence[Offer] = ()
    """All workers that were compared."""

    def explain(self, attempt: Attempt) -> None:
        """Record in the attempt why it was chosen."""
        attempt.n_expected, attempt.predicted_s = self.n_cached, self.predicted_s
        attempt.n_load = self.worker.n_load
        attempt.rivals = [
            Candidate(offer.worker.name, offer.cost_s, round(offer.n_cached), offer.worker.n_load)
            for offer in nsmallest(_MAX_CANDIDATES, self.offers, key=attrgetter("cost_s"))
        ]


class RoutingPolicy:
    """Chooses among workers, by the events of tasks that the dispatcher reports."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self._estimates: dict[str, WorkerEstimate] = {}
        self._of_models: dict[str, Throughput] = {}
        self._unknown = Throughput()
        self._throughputs: dict[tuple[str, str], Throughput] = {}
        """By model and name: a worker that comes back is as fast as it was."""
        self._sessions = SessionMap(_MAX_SESSIONS)
        self.order = LoadOrder(self._load)

    def opened(self, worker: Worker) -> None:
        """Take in a worker that is ready, its cache empty."""
        of_model = self._of_models.setdefault(worker.model, Throughput())
        name = (worker.model, worker.name)
        throughput = self._throughputs.setdefault(name, Throughput(of_model))
        self._estimates[worker.key] = WorkerEstimate(throughput, self.index.open(worker.key))
        self.order.changes[worker] = None

    def lost(self, worker: Worker) -> None:
        """Forget a worker with all that it held."""
        self.order.lost(worker)
        if self._estimates.pop(worker.key, None) is not None:
            self.index.lost(worker.key)
            self._sessions.lost(worker.key)

    def forget(self, name: str) -> None:
        """Forget what was measured of a worker that will not come back."""
        for key in [key for key in self._throughputs if key[1] == name]:
            del self._throughputs[key]

    def forget_model(self, model: str) -> None:
        """Forget what was measured of a model that has had no worker for long."""
        self._of_models.pop(model, None)

    def throughput(self, model: str) -> Throughput:
        """Return the means over the workers of a model; assumed ones before any was measured."""
        return self._of_models.get(model, self._unknown)

    def read_s(self, spec: TaskSpec) -> float:
        """Return the time to read the part of a prompt that no worker has in its cache."""
        holders = self.index.holders(spec.prefix.chain, -1, n_max=1)
        share = holders.max_blocks / spec.prefix.size if spec.prefix.size else 0.0
        of_model = self.throughput(spec.model)
        n_tokens = spec.n_tokens * of_model.length_ratio.value
        return max(0.0, 1.0 - share) * n_tokens / of_model.prompt_per_s.value

    def answer_tokens(self, model: str) -> int:
        """Return how long an answer of a model is, as a mean of recent ones."""
        return round(self.throughput(model).answer_tokens.value)

    def choose(
        self, spec: TaskSpec, now: float, excluded: Collection[str] = ()
    ) -> RouteChoice | None:
        """Choose a worker that has a credit, none of the `excluded` keys; None if there is none.

        One that sleeps is woken when the others have no free slot; a prefetch credit is only used
        when there is no free slot at all, not even one whose credit another gateway has: that is
        asked for (`DemandReports`). In a large pool it looks at the workers with most of the
        prompt, at the session's and at those with the least load.
        """
        workers = self.order.workers_of(spec.model, now)
        first = workers.first(_N_COMPARED, excluded)
        if not first:
            return None
        rank = rank_of(self.order[first[0]])
        if rank >= PREFETCH and workers.lending & ~workers.mask(excluded):
            return None
        session = self._sessions.find(spec.session)
        among = workers.ready & ~workers.mask(excluded)
        if len(workers) <= _SMALL_POOL:
            keys = [key for key in workers.bits if key not in excluded]
            holders = self.index.holders(spec.prefix.chain, among)
        else:
            keys = list(first)
            if session is not None and workers.bits.get(session.worker, 0) & among:
                keys.append(session.worker)
            also = workers.mask(keys)
            holders = self.index.holders(spec.prefix.chain, among, n_max=_N_COMPARED, also=also)
            keys = list(dict.fromkeys((*self._holding(workers, holders), *keys)))
        found = self._offers(spec, keys, holders, now)
        best = self._best(spec, [each for each in found if rank_of(each.worker) == rank])
        better = _better(best, [offer for offer in found if not offer.worker.n_free])
        reason, n_cached = _reason(best, found), round(best.n_cached)
        return RouteChoice(
            best.worker, reason, n_cached, best.n_blocks, better, best.first_s, offers=found
        )

    def _holding(self, workers: ModelWorkers, holders: Holders) -> list[str]:
        """Return a few workers that hold most of a prompt; of equal ones, those with less load."""
        keys: list[str] = []
        for _, mask in holders.levels:
            keys += workers.least_loaded(_N_COMPARED - len(keys), mask)
            if len(keys) >= _N_COMPARED:
                break
        return keys

    def pinned(self, spec: TaskSpec, worker: Worker, now: float) -> RouteChoice:
        """Return the choice for a task that can go to one worker only."""
        bit = self._estimates[worker.key].bit
        holders = self.index.holders(spec.prefix.chain, bit)
        (offer,) = self._offers(spec, [worker.key], holders, now)
        return RouteChoice(worker, RouteReason.PINNED, round(offer.n_cached), offer.n_blocks)

    def best_cached_worker(self, spec: TaskSpec, now: float) -> str:
        """Find the worker with most of a prompt in its cache; empty if none has any."""
        workers = self.order.workers_of(spec.model, now)
        holders = self.index.holders(spec.prefix.chain, workers.ready, n_max=1)
        return "".join(workers.least_loaded(1, holders.levels[0][1]) if holders.levels else ())

    def saved_s(self, spec: TaskSpec, best_cached_worker: str, now: float) -> float:
        """Return the seconds of reading that a worker saves against those that could go now."""
        able = self.order.workers_of(spec.model, now).able
        there = self._estimates.get(best_cached_worker)
        if there is None or there.bit & able:
            return 0.0
        n_there, n_here = (
            self.index.holders(spec.prefix.chain, mask, n_max=1).max_blocks
            for mask in (there.bit, able)
        )
        share = (n_there - n_here) / spec.prefix.size
        n_saved = share * there.n_tokens(spec) * there.throughput.hit_ratio.value
        saved_s = n_saved / there.throughput.prompt_per_s.value
        return saved_s if saved_s > _MARGIN_S else 0.0

    def assigned(self, task: Task, choice: RouteChoice) -> None:
        """Count a task where it goes; from now on its prompt is taken for cached there."""
        estimate = self._estimates[task.worker]
        estimate.assigned(task, choice.n_cached, choice.n_blocks)
        self.index.expect(task.worker, task.task_id, task.spec.prefix.chain)
        self.order.touch(task.worker)
        placement = SessionPlacement(task.worker, round(estimate.n_tokens(task.spec)))
        self._sessions.move(task.spec.session, placement)
        self._sessions.move(task.spec.label, placement)

    def started(self, task: Task, now: float) -> None:
        """Note that a worker begins with a task; its report of the blocks it holds came before."""
        self.index.forget_expected(task.task_id)
        self._estimates[task.worker].started(task, now)
        self.order.touch(task.worker)

    def read(self, task: Task, now: float) -> None:
        """Note that a task's prompt is read: its first delta has come."""
        self._estimates[task.worker].pending.read(task, now)
        self.order.touch(task.worker)

    def moved(self, task: Task) -> None:
        """Note that a task goes elsewhere: its worker has nothing more to read for it."""
        self._estimates[task.worker].pending.dropped(task)

    def ended(self, task: Task, message: Terminal, now: float) -> None:
        """Note what a task has left in the cache, and how long it took."""
        key = task.worker
        self.index.forget_expected(task.task_id)
        self._estimates[key].ended(task, message, now)
        self.order.touch(key)
        if not isinstance(message, Done):
            return
        n_left = message.n_past
        if not n_left and message.finish is not Finish.CANCELLED:
            n_left = message.n_prompt + message.n_predicted
        for session in (task.spec.session, task.spec.label):
            placement = self._sessions.find(session)
            if placement is not None and placement.worker == key:
                self._sessions.move(session, SessionPlacement(key, n_left))

    def emptied(self, key: str) -> None:
        """Forget all that a worker held: it has unloaded its model."""
        if key in self._estimates:
            self.index.clear(key)
            self._sessions.lost(key)

    def cached(self, key: str, message: Cached) -> None:
        """Note what a worker says of its cache."""
        self.index.remove(key, message.removed)
        self.index.add(key, message.added)

    def _offers(
        self, spec: TaskSpec, keys: Iterable[str], holders: Holders, now: float
    ) -> list[Offer]:
        rated = [(self.order[key], self._estimates[key]) for key in keys]
        return make_offers(spec, rated, holders, self._sessions.find(spec.session), now)

    def _load(self, worker: Worker, now: float) -> tuple[int, bool, float] | None:
        """Return a worker's bit in the index and its load; None if it was not opened."""
        estimate = self._estimates.get(worker.key)
        return (estimate.bit, *estimate.load(worker, now)) if estimate is not None else None

    def _best(self, spec: TaskSpec, offers: Sequence[Offer]) -> Offer:
        """Choose by affinity among those that are about as fast as the fastest."""
        least_s = min(offer.cost_s for offer in offers)
        limit_s = least_s + max(_MARGIN_S, _MARGIN_SHARE * least_s)
        label = self._sessions.find(spec.label)

        def order(offer: Offer) -> tuple[float, ...]:
            worker = offer.worker
            had_label = label is not None and label.worker == worker.key
            n_ahead = worker.n_load - worker.n_slots
            affinity = (-offer.n_own, not offer.had_session, not had_label)
            return (*affinity, -worker.n_free, n_ahead, worker.last_used)

        return min((offer for offer in offers if offer.cost_s <= limit_s), key=order)


def _reason(best: Offer, offers: Sequence[Offer]) -> RouteReason:
    """Return what decided."""
    if best.n_blocks:
        return RouteReason.PREFIX
    if best.had_session:
        return RouteReason.SESSION
    is_known = any(offer.n_blocks or offer.had_session for offer in offers)
    return RouteReason.SPREAD if is_known else RouteReason.LOAD


def _better(best: Offer, busy: Sequence[Offer]) -> BetterWorker | None:
    """Find a worker without a free slot that is faster, because it holds much of the prompt."""
    if not best.worker.n_free or best.cost_s < _MIN_SAVED_S:
        return None
    other = min(
        (offer for offer in busy if offer.n_cached), key=lambda offer: offer.cost_s, default=None
    )
    least_s = max(_MIN_SAVED_S, _MIN_SAVED_SHARE * best.cost_s)
    if other is None or best.cost_s - other.cost_s < least_s:
        return None
    return BetterWorker(other.worker.key, best.first_s)
