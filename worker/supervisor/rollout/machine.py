"""The state machine of a rolling change: from the states of processes to steps. Pure.

The workers are replaced one after the other, so that at most one worker of a model is missing. If
memory allows it, the new worker starts before the old one leaves, else after that. The new worker
is held until its answers to the golden prompts are right; then it serves for a probation time. If
one of these fails, all changes are rolled back, the latest first.
"""

import math
from collections.abc import Iterator, Sequence
from enum import Enum

from protocol.process.control import RolloutReport, RolloutState
from worker.supervisor.rollout.change import (
    AdmitWorker,
    Change,
    FleetView,
    Leave,
    ProcessState,
    Question,
    RolloutLimits,
    StartWorker,
    Step,
)


class ChangeStage(Enum):
    """What one change waits for."""

    SETTLE = "waiting for the other workers"
    ASK_OLD = "asking the old worker"
    LEAVE_FIRST = "moving its streams"
    START = "starting the new worker"
    ASK_NEW = "asking the new worker"
    PROBATION = "watching the new worker"
    LEAVE = "moving the streams of the old worker"


_FAILED = (ProcessState.DEAD, ProcessState.ABSENT, ProcessState.LEAVING)
_ANSWER_S = 60.0
"""Maximum time for the answers to the golden prompts, in seconds."""
_SETTLE_S = 60.0
"""Maximum wait until the other workers of the model serve, in seconds."""
_N_TRIES = 3
"""Comparisons before a difference of the answers counts. Under load, sums are rounded differently,
so that a greedy text may differ once."""


class Rollout:
    """One rolling change: `advance` is called whenever something may have changed."""

    def __init__(
        self, number: int, changes: Sequence[Change], limits: RolloutLimits, now: float
    ) -> None:
        self._number = number
        self._changes = list(changes)
        self._limits = limits
        self._n_total = len(changes)
        self._started_at = self._ended_at = now
        self._state = RolloutState.RUNNING
        self._stage: ChangeStage | None = None
        self._until = now
        self._why = ""
        self._done: list[Change] = []
        self._undo: list[Change] = []
        self._references: Sequence[str] = ()
        self._n_questions = 0
        self._tries = 0
        self._least: int | None = None
        self._n_before = 0

    def __repr__(self) -> str:
        stage = f" {self._stage.name}" if self._stage else ""
        return f"<Rollout {self._state}{stage} {len(self._done)}/{self._n_total}>"

    @property
    def is_over(self) -> bool:
        """Whether it has ended, so that no more steps follow."""
        return self._state in (RolloutState.DONE, RolloutState.FAILED)

    @property
    def current(self) -> Change | None:
        """Return the change in progress; while rolling back, the reversed one in progress."""
        queue = self._undo if self._state is RolloutState.GOING_BACK else self._changes
        return queue[0] if queue and not self.is_over else None

    @property
    def deadline(self) -> float | None:
        """Return the time at which `advance` must be called if nothing happens before."""
        has_limit = not self.is_over and self._stage is not None and self._until < math.inf
        return self._until if has_limit else None

    def report(self, now: float) -> RolloutReport:
        """Return its state for the gateways."""
        change = self.current
        return RolloutReport(
            state=self._state,
            number=self._number,
            n_done=len(self._done),
            n_total=self._n_total,
            worker=change.title if change else "",
            step=self._stage.value if change and self._stage else "",
            why=self._why,
            least_serving=self._least or 0,
            n_before=self._n_before,
            seconds=round((self._ended_at if self.is_over else now) - self._started_at, 1),
        )

    def abort(self) -> None:
        """Roll all changes back."""
        if self._state is RolloutState.RUNNING:
            self._go_back("aborted")

    def advance(self, view: FleetView, now: float) -> list[Step]:
        """Return the steps that follow from the current states of the processes."""
        self._count(view)
        if self._state is RolloutState.RUNNING:
            self._check_replacements(view)
        steps: list[Step] = []
        while (change := self.current) is not None:
            before = (self._stage, change, self._state, self._n_questions)
            steps += self._turn(change, view, now)
            if steps or before == (self._stage, self.current, self._state, self._n_questions):
                return steps  # the next decision depends on the effect of these steps
        if not self.is_over:
            is_back = self._state is RolloutState.GOING_BACK
            self._state = RolloutState.FAILED if is_back else RolloutState.DONE
            self._stage, self._ended_at = None, now
        return steps

    def _count(self, view: FleetView) -> None:
        """Note how many workers of the models that change serve at the same time."""
        models = {change.model for change in (*self._changes, *self._done, *self._undo)}
        n = sum(len(view.serving(model)) for model in models)
        if self._least is None:
            self._n_before = self._least = n
        self._least = min(self._least, n)

    def _check_replacements(self, view: FleetView) -> None:
        """Roll back if a worker that has replaced another one has failed."""
        for change in self._done:
            if change.new and view.state(change.new) in _FAILED:
                self._go_back(f"{change.new} has died: {view.why(change.new)}")
                return

    def _go_back(self, why: str) -> None:
        self._why = why
        self._state = RolloutState.GOING_BACK
        half = self._changes[:1] if self._stage is not None else []
        self._undo = [change.reversed() for change in [*half, *reversed(self._done)]]
        self._done.clear()
        self._stage = None

    # ---- one change ---------------------------------------------------------------------------

    def _turn(self, change: Change, view: FleetView, now: float) -> list[Step]:
        if self._state is RolloutState.GOING_BACK:
            return list(self._undo_change(change, view, now))
        if self._stage is None:
            return self._enter(ChangeStage.SETTLE, now + _SETTLE_S)
        handlers = {
            ChangeStage.SETTLE: self._settle,
            ChangeStage.ASK_OLD: self._await_old_answers,
            ChangeStage.LEAVE_FIRST: self._await_leave,
            ChangeStage.START: self._await_start,
            ChangeStage.ASK_NEW: self._await_new_answers,
            ChangeStage.PROBATION: self._watch,
            ChangeStage.LEAVE: self._await_leave,
        }
        return handlers[self._stage](change, view, now)

    def _enter(self, stage: ChangeStage, until: float, *steps: Step) -> list[Step]:
        self._stage, self._until = stage, until
        return list(steps)

    def _settle(self, change: Change, view: FleetView, now: float) -> list[Step]:
        """Wait until the model's other workers serve, so that no second one is missing."""
        missing = [name for name in view.waits_for(change.model) if name != change.old]
        if missing:
            if now >= self._until:
                self._go_back(f"{', '.join(missing)} did not become ready")
            return []
        if not change.new:
            return self._enter(ChangeStage.LEAVE, math.inf, Leave(change.old))
        is_there = change.old and view.state(change.old) is ProcessState.READY
        needs_old = any(question.answer is None for question in self._limits.golden)
        self._references = ()
        if is_there and needs_old and change.is_comparable:
            return self._ask(ChangeStage.ASK_OLD, change.old, now)
        return self._begin_replacement(change, view, now)

    def _ask(self, stage: ChangeStage, name: str, now: float) -> list[Step]:
        self._n_questions += 1
        question = Question(name, self._n_questions)
        return self._enter(stage, now + _ANSWER_S, question)

    def _answers(self, name: str, view: FleetView, now: float) -> Sequence[str] | None:
        """Return a process's answers; None while they are pending, and if it fails to answer."""
        answers = view.answers(self._n_questions)
        if isinstance(answers, str) or (answers is None and now >= self._until):
            self._go_back(f"{name} does not answer: {answers or 'no answer in time'}")
            return None
        return answers

    def _await_old_answers(self, change: Change, view: FleetView, now: float) -> list[Step]:
        answers = self._answers(change.old, view, now)
        if answers is None:
            return []
        self._references = answers
        if self._tries:  # the new one was different, and both were asked again
            return self._ask(ChangeStage.ASK_NEW, change.new, now)
        return self._begin_replacement(change, view, now)

    def _begin_replacement(self, change: Change, view: FleetView, now: float) -> list[Step]:
        """Start the new worker beside the old one, or let the old one leave first."""
        if not change.old or view.has_room(change):
            return self._start(change, now)
        return self._enter(ChangeStage.LEAVE_FIRST, math.inf, Leave(change.old))

    def _start(self, change: Change, now: float) -> list[Step]:
        return self._enter(ChangeStage.START, now + self._limits.start_s, StartWorker(change))

    def _await_leave(self, change: Change, view: FleetView, now: float) -> list[Step]:
        if view.state(change.old) is not ProcessState.ABSENT:
            return []
        return (
            self._start(change, now) if self._stage is ChangeStage.LEAVE_FIRST else self._finish()
        )

    def _await_start(self, change: Change, view: FleetView, now: float) -> list[Step]:
        state = view.state(change.new)
        if state in _FAILED:
            self._go_back(f"{change.new} did not start: {view.why(change.new)}")
        elif state is ProcessState.READY:
            self._tries = 0
            if self._limits.golden:
                return self._ask(ChangeStage.ASK_NEW, change.new, now)
            return self._admit(change, now)
        elif now >= self._until:
            self._go_back(f"{change.new} was not ready within {self._limits.start_s:g} s")
        return []

    def _await_new_answers(self, change: Change, view: FleetView, now: float) -> list[Step]:
        if view.state(change.new) in _FAILED:
            self._go_back(f"{change.new} has died: {view.why(change.new)}")
            return []
        answers = self._answers(change.new, view, now)
        if answers is None:
            return []
        wrong = self._difference(answers)
        if not wrong:
            return self._admit(change, now)
        self._tries += 1
        is_old_there = change.old and view.state(change.old) is ProcessState.READY
        if self._references and is_old_there and self._tries < _N_TRIES:
            return self._ask(ChangeStage.ASK_OLD, change.old, now)
        self._go_back(f"{change.new} gives another answer to a golden prompt: {wrong}")
        return []

    def _difference(self, answers: Sequence[str]) -> str:
        """Return how the first wrong answer differs; empty if all are right."""
        for index, (golden, answer) in enumerate(zip(self._limits.golden, answers, strict=True)):
            if golden.answer is not None:
                if not answer.startswith(golden.answer):
                    return f"{answer[:80]!r} instead of {golden.answer[:80]!r}"
            elif self._references and answer != self._references[index]:
                return f"{answer[:80]!r} instead of {self._references[index][:80]!r}"
        return ""

    def _admit(self, change: Change, now: float) -> list[Step]:
        until = now + self._limits.probation_s
        return self._enter(ChangeStage.PROBATION, until, AdmitWorker(change.new))

    def _watch(self, change: Change, view: FleetView, now: float) -> list[Step]:
        if view.state(change.new) in _FAILED:
            self._go_back(f"{change.new} has died: {view.why(change.new)}")
        elif now >= self._until:
            if change.old and view.state(change.old) is not ProcessState.ABSENT:
                return self._enter(ChangeStage.LEAVE, math.inf, Leave(change.old))
            return self._finish()
        return []

    def _finish(self) -> list[Step]:
        self._done.append(self._changes.pop(0))
        self._stage, self._tries = None, 0
        return []

    # ---- rolling back -------------------------------------------------------------------------

    def _undo_change(self, change: Change, view: FleetView, now: float) -> Iterator[Step]:
        """Start the earlier worker (`new`) again, and let the later one (`old`) leave."""
        if self._wait_for_end(change, view):
            return
        has_target = not change.new or view.state(change.new) is ProcessState.READY
        is_gone = not change.old or view.state(change.old) is ProcessState.ABSENT
        match self._stage:
            case None if has_target and is_gone:
                self._undo.pop(0)
            case None if not has_target and self._must_stay(change, view):
                self._why += f"; {change.old} stays: its old model file has been replaced"
                self._undo.pop(0)
            case None if is_gone or (not has_target and self._may_overlap(change, view)):
                self._stage, self._until = ChangeStage.START, now + self._limits.start_s
                if view.state(change.new) is ProcessState.ABSENT:
                    yield StartWorker(change, is_held=False)
            case None:
                self._stage, self._until = ChangeStage.LEAVE, math.inf
                yield Leave(change.old)
            case ChangeStage.START if has_target:
                self._stage = None
            case ChangeStage.START if now >= self._until:
                self._why += f"; {change.new} is not ready again after {self._limits.start_s:g} s"
                self._undo.pop(0)
                self._stage = None
            case ChangeStage.LEAVE if is_gone:
                self._stage = None

    def _wait_for_end(self, change: Change, view: FleetView) -> bool:
        """Wait while the earlier worker leaves, after which it can be started; true until then."""
        is_leaving = view.state(change.new) is ProcessState.LEAVING
        if is_leaving and self._stage is None:
            self._stage, self._until = ChangeStage.LEAVE_FIRST, math.inf
        elif not is_leaving and self._stage is ChangeStage.LEAVE_FIRST:
            self._stage = None
        return self._stage is ChangeStage.LEAVE_FIRST

    def _must_stay(self, change: Change, view: FleetView) -> bool:
        """Return whether the later worker serves and the earlier one cannot be restored."""
        is_serving = change.old in view.serving(change.model)
        return is_serving and not view.is_restorable(change.new)

    def _may_overlap(self, change: Change, view: FleetView) -> bool:
        """Return whether the later worker can serve while the earlier one starts."""
        return change.old in view.serving(change.model) and view.has_room(change)
