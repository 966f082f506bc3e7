"""Replaces one running gateway by a new process; the steps are those of `gateway.succession`.

It reads the reports of the two processes and sends them signals. The old one ends only after the
new one serves, so that the old one goes on if the new one cannot start.
"""

import logging
import signal
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum

from protocol.process.control import SUCCESSOR_VARIABLE
from worker.supervisor.children.children import Children
from worker.supervisor.children.launch import Launch
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.children.watch import ChildWatch

logger = logging.getLogger("supervisor")

_LIMIT_S = 60.0
"""Time for a new gateway to serve."""
_WORKERS_S = 20.0
"""Time for a model whose workers have just died to have one again."""
_JOIN_S = 10.0
"""Time for the workers of the old gateway to dial the new one."""
_LOST_S = 3.0
"""The same where the old gateway has died: as long as one that is started again waits for them."""
_IDLE_S = 90.0
"""Longer than an idle client connection stays open after its gateway was replaced."""


class HandoverStep(Enum):
    """What a hand-over waits for."""

    PREPARING = "the new gateway prepares itself"
    BINDING = "the new gateway binds the endpoint"
    TELLING = "the old gateway tells its workers"
    JOINING = "the workers dial the new gateway"
    OPENING = "the new gateway begins to serve"
    DONE = "the new gateway serves"
    FAILED = "the old gateway goes on"


class Handover:
    """One replacement; `turn` advances it."""

    def __init__(self, children: Children, old: ChildWatch, launch: Launch, now: float) -> None:
        self._children = children
        self._launch = launch
        self._step = HandoverStep.PREPARING
        self._ends_at = now + _LIMIT_S
        self._workers_by = now + _WORKERS_S
        self._joined_by = self._ends_at
        self._n_workers = 0
        self.old = old
        self.new = children.add(
            replace(launch, env={**launch.env, SUCCESSOR_VARIABLE: "1"}), due_at=now
        )
        self.new.is_trial = True

    def __repr__(self) -> str:
        return f"<Handover of {self._launch.name}: {self._step.value}>"

    @property
    def is_over(self) -> bool:
        """Whether one of the two gateways is alone."""
        return self._step in (HandoverStep.DONE, HandoverStep.FAILED)

    @property
    def has_failed(self) -> bool:
        """Whether the old gateway goes on."""
        return self._step is HandoverStep.FAILED

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which `turn` must be called."""
        if self._step is HandoverStep.PREPARING and "X_PREPARED" in self.new.child.reports:
            yield self._workers_by
        yield self._joined_by if self._step is HandoverStep.JOINING else self._ends_at

    def turn(self, now: float) -> None:
        """Take the steps that are due."""
        if not self.new.child.is_alive and self.new.child.state is ChildState.ENDED:
            self._fail(self.new.cause())
        elif now >= self._ends_at:
            self._fail(f"after {_LIMIT_S:g} s {self._step.value}")
        while not self.is_over and self._advance(now):
            pass

    def _awaits_workers(self, now: float) -> bool:
        """Return whether begun answers wait for workers, which later dial only the new gateway."""
        return now < self._workers_by and self._has_old and self._children.is_model_away

    @property
    def _has_old(self) -> bool:
        return self.old.child.state is ChildState.READY

    def _advance(self, now: float) -> bool:
        """Take one step if its condition is met."""
        new, old = self.new.child.reports, self.old.child.reports
        if not self._has_old and self.old.child.state is not ChildState.ENDED:
            self.old.due_at = self._ends_at  # it has died: the new one serves before it is back
        match self._step:
            case HandoverStep.PREPARING if "X_PREPARED" in new and not self._awaits_workers(now):
                self._go_on(self.new, HandoverStep.BINDING)
            case HandoverStep.BINDING if "X_BOUND" in new:
                self._go_on(self.old, HandoverStep.TELLING)
            case HandoverStep.TELLING if "X_ASIDE" in old or not self._has_old:
                # Of one that has died nobody knows how many it had.
                n_ready = self._children.n_ready_workers
                self._n_workers = _number(old.get("X_ASIDE", "")) if self._has_old else n_ready
                join_s = _JOIN_S if self._has_old else _LOST_S
                self._joined_by = min(now + join_s, self._ends_at)
                self._step = HandoverStep.JOINING
            case HandoverStep.JOINING if self._is_joined(now):
                self._go_on(self.new, HandoverStep.OPENING)
            case HandoverStep.OPENING if self.new.child.state is ChildState.READY:
                self._complete(now)
            case _:
                return False
        return True

    def _is_joined(self, now: float) -> bool:
        text = self.new.child.reports.get("X_WORKERS", "")
        return now >= self._joined_by or (bool(text) and _number(text) >= self._n_workers)

    def _go_on(self, watch: ChildWatch, step: HandoverStep) -> None:
        watch.child.kill(signal.SIGUSR1)
        self._step = step

    def _complete(self, now: float) -> None:
        self._step = HandoverStep.DONE
        self.new.is_trial = False
        self.new.child.launch = self._launch  # a restart is no hand-over
        self.old.leaves_by = now + self.old.child.launch.drain_timeout_s + _IDLE_S
        self.old.leave()
        logger.info(
            "gateway replaced",
            extra={
                "child": self._launch.name,
                "pid": self.new.child.pid,
                "n_workers": _number(self.new.child.reports.get("X_WORKERS", "")),
            },
        )

    def _fail(self, cause: str) -> None:
        logger.error(
            "gateway not replaced",
            extra={
                "child": self._launch.name,
                "cause": cause,
                "action": HandoverStep.FAILED.value,
            },
        )
        if self._step is not HandoverStep.PREPARING:
            self.old.child.reports.pop("X_ASIDE", None)
            self.old.child.kill(signal.SIGUSR2)
        self._step = HandoverStep.FAILED
        if not self._has_old:
            self.old.due_at = 0.0
        self.new.leaves_by = 0.0
        self._children.kill([self.new])


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
