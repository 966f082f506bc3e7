"""Finds the requests that kill workers, and refuses them; it refuses no other.

When a worker dies, each task that it had is a suspect. One of them may have killed it, or none:
processes are also killed from outside. So each suspect is tried at another worker:

- A worker generates for one suspect at a time. A suspect is cleared once its answer is longer than
  it was when its worker died.
- Tokens that a worker has computed before are harmless. So a suspect with a part of an answer is
  read at once, beside others, and pauses until its turn. A turn takes a few steps, so eight
  suspects take little longer than one. A suspect without a token has its turn before it is read.
- If a second worker dies, only the suspect whose turn it was has two deaths. The paused ones are
  not charged with it.
- Two workers that were killed from outside look the same. So that suspect is held for ten seconds.
  If another worker dies without it, in that time or in the minute before, something else kills
  workers: the suspect goes on, and is held again only after two more deaths for each of those.
  Otherwise it is the cause, and is refused for an hour.
- A worker that connects again had not died; its connection broke. That death is taken back.

A request whose answer grows a little before each death is cleared each time; it is refused after
sixteen deaths in a row. Pure; time is passed in.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import NamedTuple

from gateway.pool.tasks.suspect import QuarantineView, Suspect
from gateway.pool.tasks.task import Task
from protocol.errors import ErrorCode, TaskError

SETTLE_S = 0.1
"""Seconds within which the deaths of several workers at one stroke are all noticed."""
HELD_S = 10.0
"""Seconds for which a suspect is held after its second death, in case others die without it."""
REFUSED_S = 3600.0
"""Seconds for which a suspect is refused then."""
_OTHER_DEATHS_S = 60.0
"""Seconds for which the death of a worker that did not have a suspect counts in its favour."""
_SUSPECTED_S = 600.0
"""Seconds for which a death is held against a request that does not come back."""
_MAX_DEATHS = 2
"""Deaths after which a suspect is held; two more for each death without it."""
_MAX_LOSSES = 16
"""Deaths in a row after which a request is refused that each of those workers had."""
_MAX_SUSPECTS = 1024
"""Suspects remembered; the one seen longest ago is forgotten first."""
_N_DELTAS = 3
"""Deltas that clear a suspect: those of the last step or two are lost with a worker."""
_TURN_S = 3.0
"""Seconds of a turn, after which another suspect has one too: some prompts take minutes to read."""


class _Death(NamedTuple):
    """A worker that died."""

    at: float
    worker: str
    present: frozenset[bytes]
    """Fingerprints of the tasks that it had."""


class Quarantine:
    """All suspects, and the deaths of the last minute."""

    def __init__(self, settle_s: float = 0.0) -> None:
        self._settle_s = settle_s
        """How long a suspect waits after a death: other workers may have died with that one."""
        self._suspects: OrderedDict[bytes, Suspect] = OrderedDict()
        """By fingerprint, the one seen longest ago first."""
        self._deaths: deque[_Death] = deque()
        self._tried: dict[int, Task] = {}
        """Tasks of suspects that went to a worker, some of which have ended since."""

    def __repr__(self) -> str:
        return f"<Quarantine suspects={len(self._suspects)}>"

    def admit(self, task: Task, now: float) -> None:
        """Note what is held against a new task; raises `TaskError` if it is refused."""
        fingerprint = task.spec.fingerprint
        if not self._suspects or fingerprint is None:
            return
        suspect = self._suspects.get(fingerprint.digest)
        if suspect is None:
            return
        if suspect.refused_until > now:
            suspect.n_refused += 1
            raise refusal(suspect)
        if suspect.refused_until or now - suspect.seen_at > _SUSPECTED_S:
            self._forget(suspect)
            return
        task.suspect, task.n_proven = suspect, suspect.n_tokens

    def died(
        self, worker: str, had: Mapping[int, Task], tasks: Mapping[int, Task], now: float
    ) -> None:
        """Note the death of a worker, by its key, that had some of all tasks."""
        present = [task for task in had.values() if not task.is_paused]
        on_trial = {task.suspect for task in present if task.is_on_trial}
        for task in present:
            self._accuse(task, now)
        suspects = {member.suspect for member in present if member.suspect is not None}
        self._remember(_Death(now, worker, frozenset(each.fingerprint for each in suspects)))
        for suspect in suspects:
            suspect.n_deaths += 1
            suspect.seen_at = now
        tried = [suspect for suspect in suspects if suspect in on_trial]
        if len(tried) == 1:
            self._judge(tried[0], now)
        self._count_losses(had, tasks, now)
        for other in self._suspects.values():
            if other not in suspects:
                other.held_until = 0.0

    def survived(self, worker: str) -> None:
        """Take back the death of a worker that has connected again."""
        for death in [one for one in self._deaths if one.worker == worker]:
            self._deaths.remove(death)
            for suspect in filter(None, map(self._suspects.get, death.present)):
                suspect.n_deaths -= 1
                suspect.held_until = 0.0
                if suspect.n_deaths <= 0:
                    self._forget(suspect)

    def _count_losses(self, had: Mapping[int, Task], tasks: Mapping[int, Task], now: float) -> None:
        """Refuse what every worker had that died lately, whether or not it was its turn."""
        for task_id, task in tasks.items():
            task.n_losses = task.n_losses + 1 if task_id in had else 0
            if task.n_losses >= _MAX_LOSSES and task.suspect is not None:
                task.suspect.n_deaths = task.n_losses
                self._refuse(task.suspect, now)

    def assigned(self, task: Task) -> None:
        """Note a task that goes to a worker."""
        if task.suspect is not None:
            self._tried[task.task_id] = task

    def excluded(self, task: Task, now: float) -> set[str] | None:
        """Return the workers to which a suspect may not go now; None means all."""
        suspect = task.suspect
        assert suspect is not None
        if suspect.held_until or suspect.refused_until:
            return None
        if task.is_proven:
            return set()
        if self._is_early(suspect, now):
            return None
        return {other.worker for other in self._tried.values() if _blocks(other, task, now)}

    def proceed(self, now: float) -> list[Task]:
        """Return the tasks that pause and whose turn it is now; streams come before other ones."""
        paused = [other for other in self._tried.values() if other.is_paused and other.is_at_worker]
        if not paused:
            return []
        trials = [other for other in self._tried.values() if not other.is_paused]
        found: list[Task] = []
        for task in sorted(paused, key=lambda other: (other.spec.is_whole, other.assigned_at)):
            rivals = [trial for trial in trials if trial.worker == task.worker]
            if self._has_turn(task, rivals, now):
                task.proceed(now)
                trials.append(task)
                found.append(task)
        return found

    def _has_turn(self, task: Task, rivals: list[Task], now: float) -> bool:
        """Return whether a paused task may resume now beside others at its worker."""
        suspect = task.suspect
        if suspect is None or not task.is_ready or task.cancelled_at:
            return False
        if not suspect.n_deaths:
            return True
        if suspect.held_until or suspect.refused_until:
            return False
        return not self._is_early(suspect, now) and not any(
            _blocks(rival, task, now) for rival in rivals
        )

    def _is_early(self, suspect: Suspect, now: float) -> bool:
        return suspect.n_deaths > 0 and 0 <= now - suspect.seen_at < self._settle_s

    def progressed(self, task: Task) -> bool:
        """Note a delta of a task; true if nothing is held against it any more."""
        task.is_paused = False  # if a worker does not wait
        if not task.is_on_trial:
            return True
        if task.n_deltas < _N_DELTAS or len(task.answer.tokens) <= task.n_proven:
            return False
        self.cleared(task)
        return True

    def cleared(self, task: Task) -> None:
        """Clear a task that has passed the place where a worker died, or has ended well."""
        suspect, task.suspect = task.suspect, None
        if suspect is not None and not suspect.refused_until:
            self._forget(suspect)

    def refuse_held(self, now: float) -> bool:
        """Refuse the suspects that were held long enough; return whether there are any suspects."""
        for other in list(self._tried.values()):
            if not other.is_at_worker or other.suspect is None:
                del self._tried[other.task_id]
        for suspect in list(self._suspects.values()):
            if suspect.held_until and suspect.held_until <= now:
                self._refuse(suspect, now)
        return bool(self._suspects or self._tried)

    def views(self, now: float) -> tuple[QuarantineView, ...]:
        """List what is refused."""
        return tuple(
            QuarantineView(
                fingerprint=suspect.fingerprint.hex(),
                n_deaths=suspect.n_deaths,
                age_s=now - suspect.since,
                left_s=suspect.refused_until - now,
                n_refused=suspect.n_refused,
            )
            for suspect in self._suspects.values()
            if suspect.refused_until > now
        )

    def release(self, fingerprint: str = "") -> int:
        """Let in what is refused: one fingerprint, or all; return how many."""
        found = [
            suspect
            for suspect in self._suspects.values()
            if suspect.refused_until and fingerprint in ("", suspect.fingerprint.hex())
        ]
        for other in found:
            self._forget(other)
        return len(found)

    def _accuse(self, task: Task, now: float) -> None:
        """Hold a death against a task."""
        task.n_proven = len(task.answer.tokens)
        if task.suspect is not None:
            key = task.suspect.fingerprint
        elif task.spec.fingerprint is not None:
            key = task.spec.fingerprint.digest
        else:
            key = b"task %d" % task.task_id
        suspect = self._suspects.get(key) or task.suspect or Suspect(key, since=now, seen_at=now)
        task.suspect = self._suspects[key] = suspect
        suspect.n_tokens = max(suspect.n_tokens, task.n_proven)
        self._suspects.move_to_end(key)
        if len(self._suspects) > _MAX_SUSPECTS:
            _, forgotten = self._suspects.popitem(last=False)
            forgotten.n_deaths, forgotten.held_until = 0, 0.0

    def _judge(self, suspect: Suspect, now: float) -> None:
        """Hold a suspect that alone was tried at a worker that died, if it was often enough."""
        n_others = sum(suspect.fingerprint not in death.present for death in self._deaths)
        limit = min(_MAX_DEATHS * (1 + n_others), _MAX_LOSSES)
        if suspect.n_deaths >= limit:
            suspect.held_until = now + HELD_S

    def _refuse(self, suspect: Suspect, now: float) -> None:
        suspect.held_until, suspect.refused_until = 0.0, now + REFUSED_S
        # Its deaths are explained: they no longer count in favour of others.
        kept = [death for death in self._deaths if suspect.fingerprint not in death.present]
        self._deaths = deque(kept)

    def _remember(self, death: _Death) -> None:
        self._deaths.append(death)
        while self._deaths[0].at < death.at - _OTHER_DEATHS_S:
            self._deaths.popleft()

    def _forget(self, suspect: Suspect) -> None:
        suspect.n_deaths, suspect.held_until, suspect.refused_until = 0, 0.0, 0.0
        self._suspects.pop(suspect.fingerprint, None)


def _blocks(other: Task, task: Task, now: float) -> bool:
    """Return whether a suspect at a worker keeps another one from having its turn there."""
    suspect, rival = task.suspect, other.suspect
    assert suspect is not None
    if not other.is_at_worker or rival is None or rival is suspect or not rival.n_deaths:
        return False
    is_alone = max(suspect.n_deaths, rival.n_deaths) > 1
    return is_alone or now - other.risk_since < _TURN_S


def refusal(suspect: Suspect) -> TaskError:
    """Return the error of a request that is refused."""
    text = f"{suspect.n_deaths} workers died while they computed this request"
    text += "; it is refused for an hour, or until an operator lets it in again"
    return TaskError(ErrorCode.QUARANTINED, text)
