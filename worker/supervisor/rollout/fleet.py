"""The supervisor's workers, as a rolling change reads and changes them."""

import contextlib
import signal
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from protocol.config import config as configs
from protocol.config.config import PoolConfig
from worker.host.placement import Host
from worker.host.weights import files, maps
from worker.supervisor.children import launch
from worker.supervisor.children.children import Children
from worker.supervisor.children.launch import Launch
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.children.restart_policy import RunHistory
from worker.supervisor.children.watch import DOWN, ChildWatch
from worker.supervisor.rollout.change import (
    AdmitWorker,
    Change,
    Leave,
    ProcessState,
    Question,
    StartWorker,
    Step,
)
from worker.supervisor.rollout.plan import PlannedWorker, find_process
from worker.supervisor.rollout.questions import Questions
from worker.supervisor.rollout.room import fits, need_of

_HELD = "--held"


class Fleet:
    """Implements `FleetView` over the supervisor's processes, and carries out the steps."""

    def __init__(
        self, folder: Path, environ: Mapping[str, str], host: Host, questions: Questions
    ) -> None:
        self._folder = folder
        self._environ = environ
        self._host = host
        self.questions = questions
        self._children: Children | None = None
        self._n_files = 0
        self.workers: dict[str, PlannedWorker] = {}
        """By process name: those that run, those to start, and those that may be restored."""
        self._launches: dict[str, Launch] = {}
        self._held: set[str] = set()
        self.drained: set[str] = set()
        """Processes that an admin has taken out of service."""
        self._heirs: dict[str, str] = {}
        """Drained process to the one that starts in its place after a rolling change; none starts
        where it is empty."""
        self.surge = "auto"
        self.drain_timeout_s = 600.0
        self.prompts: Sequence[str] = ()
        self.n_predict = 16

    def open(self, children: Children) -> None:
        """Take over the workers that run."""
        self._children = children
        for watch in children.workers:
            self._launches[watch.child.launch.name] = watch.child.launch

    @property
    def running(self) -> dict[str, PlannedWorker]:
        """The workers by their names, each once: that of the process which runs or is drained."""
        names = {watch.child.launch.name for watch in self._watches()}
        return {worker.name: worker for name, worker in self.workers.items() if name in names}

    def plan(
        self, pool: PoolConfig, found: Sequence[Change], coming: Mapping[str, PlannedWorker]
    ) -> list[Change]:
        """Write the configuration of new workers; raises `OSError`.

        Returns the changes of running workers. A drained worker starts as its new one when it is
        undrained.
        """
        self._n_files += 1
        path = self._folder / f"workers-{self._n_files}.json"
        path.touch(mode=0o600)
        own = tuple(planned.config for planned in coming.values())
        path.write_text(configs.dump(replace(pool, worker=own)))
        self.workers |= coming
        for worker in launch.workers(own, path, self._environ):
            self._launches[worker.name] = worker
        self._heirs = {change.old: change.new for change in found if change.old in self.drained}
        return [change for change in found if change.old not in self.drained]

    def keep_leaving(self, names: Container[str]) -> None:
        """Drain again the workers of these names that leave: a drained one was removed before."""
        for name, worker in self.running.items():
            if name in names and self.state(worker.process) is ProcessState.LEAVING:
                self.drained.add(worker.process)
                self._heirs.pop(worker.process, None)

    def forget(self, *, is_done: bool) -> None:
        """Forget the workers without a process, and remove the files that no other one reads."""
        self._heirs = self._heirs if is_done else {}
        self.drained -= {name for name, heir in self._heirs.items() if not heir}
        names = {watch.child.launch.name for watch in self._watches()} | {*self._heirs.values()}
        self.workers = {name: worker for name, worker in self.workers.items() if name in names}
        self._launches = {
            name: launch_ for name, launch_ in self._launches.items() if name in names
        }
        self._held &= names
        read = {argument for launch_ in self._launches.values() for argument in launch_.argv}
        for path in self._folder.glob("workers-*.json"):
            if str(path) not in read:
                with contextlib.suppress(OSError):
                    path.unlink()

    def find(self, name: str) -> str:
        """Return the process of a worker: named in full, or without host or generation."""
        return find_process((watch.child.launch.name for watch in self._watches()), name)

    def sweep(self) -> None:
        """Remove the watches of workers that have left and are not drained by an admin."""
        assert self._children is not None
        for watch in self._watches():
            is_kept = watch.child.launch.name in self.drained
            if watch.child.state is ChildState.ENDED and not is_kept:
                self._children.watches.remove(watch)

    def drain(self, name: str, now: float) -> None:
        """Stop a worker, and do not start it again."""
        self.drained.add(name)
        self._leave(name, now)

    def undrain(self, name: str, now: float) -> bool:
        """Start a worker again that is drained, or down and waits; false while it still leaves."""
        assert self._children is not None
        watch = self._watch(name)
        if watch is None or watch.child.state not in (*DOWN, ChildState.ENDED):
            return False
        self.drained.discard(name)
        self._children.watches.remove(watch)
        self._children.add(self._launches[self._heirs.pop(name, name)], due_at=now)
        return True

    def is_down(self, name: str) -> bool:
        """Return whether a worker does not run because it died."""
        watch = self._watch(name)
        return watch is not None and watch.child.state in DOWN

    # ---- what a rolling change reads ----------------------------------------------------------

    def state(self, name: str) -> ProcessState:
        """Return the state of a process."""
        watch = self._watch(name)
        if watch is None or watch.child.state is ChildState.ENDED:
            return ProcessState.ABSENT
        if watch.leaves_by is not None:
            return ProcessState.LEAVING
        match watch.child.state:
            case ChildState.READY:
                return ProcessState.READY
            case ChildState.STARTING:
                return ProcessState.STARTING
            case ChildState.WAITING if not _has_died(watch):
                return ProcessState.STARTING
        return ProcessState.DEAD

    def why(self, name: str) -> str:
        """Return why a process has died."""
        watch = self._watch(name)
        return watch.cause() if watch is not None else "it was ended"

    def serving(self, model: str) -> list[str]:
        """Name the processes of a model that serve clients and do not leave."""
        return [
            name
            for name in self._names(model)
            if self.state(name) is ProcessState.READY and name not in self._held
        ]

    def waits_for(self, model: str) -> list[str]:
        """Name the processes of a model that start or have died."""
        away = (ProcessState.STARTING, ProcessState.DEAD)
        return [name for name in self._names(model) if self.state(name) in away]

    def has_room(self, change: Change) -> bool:
        """Return whether the new process fits into the memory beside the old one."""
        if self.surge != "auto":
            return self.surge == "on"
        running = [self.workers[name].config for name in self._names("") if name in self.workers]
        mapped = frozenset(path for worker in running if maps(worker) for path in files(worker))
        return fits(need_of(self.workers[change.new].config, self._host, mapped))

    def is_restorable(self, name: str) -> bool:
        """Return whether a process that has ended would load the same files again."""
        return name in self.workers and self.workers[name].is_restorable

    def answers(self, number: int) -> Sequence[str] | str | None:
        """Return the answers to a question, or an error text; None while they are pending."""
        return self.questions.answers(number)

    # ---- the steps of a rolling change --------------------------------------------------------

    def perform(self, steps: Iterable[Step], now: float) -> None:
        """Carry steps out."""
        for step in steps:
            match step:
                case StartWorker(change, is_held):
                    self._start(change.new, is_held=is_held, now=now)
                case Leave(name):
                    self._leave(name, now)
                case AdmitWorker(name):
                    self._admit(name)
                case Question(name, number):
                    self.questions.ask(number, name, self.prompts, self.n_predict)

    def _start(self, name: str, *, is_held: bool, now: float) -> None:
        assert self._children is not None
        launched = self._launches[name]
        if is_held:
            self._held.add(name)
            launched = replace(launched, argv=(*launched.argv, _HELD))
        self._children.add(launched, due_at=now)

    def _leave(self, name: str, now: float) -> None:
        watch = self._watch(name)
        if watch is None or watch.leaves_by is not None:
            return
        self._held.discard(name)
        watch.leaves_by = now + self.drain_timeout_s
        if watch.child.state is ChildState.GIVEN_UP:
            watch.child.become(ChildState.ENDED)
        else:
            watch.leave()

    def _admit(self, name: str) -> None:
        watch = self._watch(name)
        self._held.discard(name)
        if watch is not None:
            # If it must be started again, it serves at once.
            watch.child.launch = self._launches[name]
            watch.child.kill(signal.SIGUSR1)

    # -------------------------------------------------------------------------------------------

    def _watches(self) -> list[ChildWatch]:
        return self._children.workers if self._children is not None else []

    def _watch(self, name: str) -> ChildWatch | None:
        found = (watch for watch in self._watches() if watch.child.launch.name == name)
        return next(found, None)

    def _names(self, model: str) -> list[str]:
        """Name the processes of a model that are not drained; of all models if it is empty."""
        launches = (watch.child.launch for watch in self._watches())
        return [
            launch_.name
            for launch_ in launches
            if model in ("", launch_.model) and launch_.name not in self.drained
        ]


def _has_died(watch: ChildWatch) -> bool:
    return watch.was_ready or bool(watch.failure) or watch.history != RunHistory()
