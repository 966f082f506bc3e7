"""Asks a worker as the gateway does, and lets another one go on from any token."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.wire.facts import TokenProb
from protocol.wire.messages import (
    Delta,
    Done,
    Envelope,
    Failed,
    FrameItem,
    Generate,
    Started,
    TaskKey,
)
from protocol.wire.partial_answer import PartialAnswer
from tests.envelopes import payload_of
from worker.engine.task import EngineTask
from worker.link.outbound import RunningTasks
from worker.prompt.prompt import Prepared, PromptReader

Run = Callable[[EngineTask], Sequence[FrameItem]]
"""Lets an engine do a task to its end; returns its messages."""


@dataclass
class Told:
    """All that a client got of one answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    """Id, name and arguments of each."""
    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProb] = field(default_factory=list)
    sampler_state: tuple[float, ...] = ()
    started: Started | None = None
    done: Done | None = None

    def add(self, delta: Delta) -> None:
        """Take what a step gave."""
        self.text += delta.text
        self.reasoning += delta.reasoning
        self.tokens += delta.tokens
        self.probs += delta.probs
        if delta.tokens:
            self.sampler_state = delta.sampler_state
        for call in delta.tool_calls:
            if call.index == len(self.calls):
                self.calls.append(["", "", ""])
            known = self.calls[call.index]
            known[:] = [known[0] + call.id, known[1] + call.name, known[2] + call.arguments]

    @property
    def partial(self) -> PartialAnswer:
        """What another worker needs to go on."""
        assert self.started is not None
        return PartialAnswer(
            tokens=tuple(self.tokens),
            n_text=len(self.text),
            n_reasoning=len(self.reasoning),
            n_arguments=tuple(len(arguments) for _, _, arguments in self.calls),
            seed=self.started.seed,
            sampler_state=self.sampler_state,
            n_cached=self.started.n_cached,
        )

    @property
    def answer(self) -> tuple[Any, ...]:
        """What must be the same, cut or not; ids of calls are random."""
        assert self.done is not None
        calls = [(name, arguments) for _, name, arguments in self.calls]
        end = (self.done.finish, self.done.stopping_word, self.done.n_predicted)
        return self.tokens, self.text, self.reasoning, calls, end


class Asker:
    """Prepares messages of the wire for an engine, and parses what that says."""

    def __init__(self, reader: PromptReader, run: Run) -> None:
        self._reader = reader
        self._run = run
        self._ids = itertools.count(1_000_000)

    def deltas(self, message: Generate, told: Told) -> list[Delta]:
        """Ask; return the deltas, and note in `told` how it began and ended."""
        key = TaskKey(next(self._ids))
        prepared = self._reader.prepare(Envelope(key, message))
        assert isinstance(prepared, Prepared)
        running = RunningTasks(_fault)
        running.add(key, prepared.parser)
        said, _ = running.outgoing(self._run(prepared.task))
        found = []
        for one in said:
            match payload_of(one):
                case Delta() as delta:
                    found.append(delta)
                case Started() as started:
                    told.started = told.started or started
                case Done() as done:
                    told.done = done
                case Failed() as failed:
                    raise AssertionError(failed)
        return found

    def whole(self, message: Generate) -> tuple[Told, list[Delta]]:
        """Ask once; return the answer and its deltas."""
        told = Told()
        deltas = self.deltas(message, told)
        for delta in deltas:
            told.add(delta)
        return told, deltas

    def cut(
        self, message: Generate, first: Told, deltas: Sequence[Delta], *, pauses: bool = False
    ) -> Told:
        """Return the answer that another worker makes of what these deltas of the first said."""
        told = Told(started=first.started)
        for delta in deltas:
            told.add(delta)
        partial = replace(told.partial, pause_after_prefill=pauses)
        for delta in self.deltas(replace(message, partial_answer=partial), told):
            told.add(delta)
        return told


def _fault(key: TaskKey, error: Exception) -> Envelope:
    raise error
