"""A fleet without processes: it carries out what a rolling change orders, when a test says so."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from worker.supervisor.rollout.change import (
    AdmitWorker,
    Change,
    Leave,
    ProcessState,
    Question,
    RolloutLimits,
    StartWorker,
    Step,
)
from worker.supervisor.rollout.machine import Rollout


def changes(n: int, *, is_comparable: bool = False) -> list[Change]:
    return [
        Change(model="m", old=f"w-{i}", new=f"w-{i}~2", is_comparable=is_comparable)
        for i in range(1, n + 1)
    ]


@dataclass
class PretendedFleet:
    """Implements `FleetView`; `steps` holds what was ordered and not carried out yet."""

    states: dict[str, ProcessState] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)
    """What a process answers; `yes` unless given."""
    room: bool = True
    broken: set[str] = field(default_factory=set)
    """Processes that die while they start."""
    replaced: set[str] = field(default_factory=set)
    """Processes whose model file is another one now."""
    told: dict[int, Sequence[str] | str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    now: float = 0.0
    least: int = 1000

    @classmethod
    def of(cls, n: int) -> "PretendedFleet":
        return cls({f"w-{i}": ProcessState.READY for i in range(1, n + 1)})

    def state(self, name: str) -> ProcessState:
        return self.states.get(name, ProcessState.ABSENT)

    def why(self, name: str) -> str:
        return "it is broken"

    def serving(self, model: str) -> list[str]:
        ready = (name for name, state in self.states.items() if state is ProcessState.READY)
        return [name for name in ready if name not in self.held]

    def waits_for(self, model: str) -> list[str]:
        away = (ProcessState.READY, ProcessState.ABSENT, ProcessState.LEAVING)
        return [name for name, state in self.states.items() if state not in away]

    def has_room(self, change: Change) -> bool:
        return self.room

    def is_restorable(self, name: str) -> bool:
        return name not in self.replaced

    def answers(self, number: int) -> Sequence[str] | str | None:
        return self.told.get(number)

    # ---- what a test does ---------------------------------------------------------------------

    def advance(self, rollout: Rollout) -> None:
        """Let the rolling change look, and note what it orders."""
        ordered = rollout.advance(self, self.now)
        self.steps += ordered
        self.log += map(shown, ordered)
        for step in ordered:
            if isinstance(step, Leave):
                self.states[step.name] = ProcessState.LEAVING
            elif isinstance(step, StartWorker):
                self.states[step.change.new] = ProcessState.STARTING
                if step.is_held:
                    self.held.add(step.change.new)
        self.least = min(self.least, len(self.serving("m")))

    def obey(self, step: Step) -> None:
        """Carry one step out."""
        self.steps.remove(step)
        match step:
            case StartWorker(change):
                is_bad = change.new in self.broken
                self.states[change.new] = ProcessState.DEAD if is_bad else ProcessState.READY
            case Leave(name):
                del self.states[name]
                self.held.discard(name)
                self.steps = [one for one in self.steps if not _starts(one, name)]
            case AdmitWorker(name):
                self.held.discard(name)
            case Question(name, number):
                self.told[number] = [self.texts.get(name, "yes")]

    def finish(self, rollout: Rollout, limit: int = 1000) -> None:
        """Carry out everything, the time running on whenever nothing else happens."""
        for _ in range(limit):
            self.advance(rollout)
            if rollout.is_over:
                return
            if self.steps:
                self.obey(self.steps[0])
            elif rollout.deadline is not None:
                self.now = max(self.now, rollout.deadline)
        raise AssertionError(f"{rollout!r} does not end: {self.states}")


def _starts(step: Step, name: str) -> bool:
    return isinstance(step, StartWorker) and step.change.new == name


def shown(step: Step) -> str:
    match step:
        case StartWorker(change, is_held):
            return f"start {change.new}{' held' if is_held else ''}"
        case Leave(name):
            return f"leave {name}"
        case AdmitWorker(name):
            return f"admit {name}"
        case Question(name):
            return f"ask {name}"


def rollout(n: int, limits: RolloutLimits | None = None, *, is_comparable: bool = False) -> Rollout:
    return Rollout(1, changes(n, is_comparable=is_comparable), limits or RolloutLimits(), 0.0)
