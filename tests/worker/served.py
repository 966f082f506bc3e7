"""An engine on its own thread over a real backend, asked like a client would."""

import itertools
import math
import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protocol.errors import TaskError
from protocol.wire.facts import TokenProb
from protocol.wire.messages import (
    Delta,
    Done,
    Envelope,
    Failed,
    FrameItem,
    TaskKey,
    TaskMessage,
    Terminal,
)
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read
from protocol.wire.side_tasks import SetLora, SlotAction
from tests.envelopes import payload_of
from worker.engine.engine import Engine
from worker.engine.engine_config import EngineConfig
from worker.engine.speculation.draft import Drafter
from worker.engine.task import EngineTask, Submit
from worker.link.tasks.side_tasks import SideTasks
from worker.llama.backend import LlamaBackend


@dataclass
class Answer:
    """Everything that came for one task."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProb] = field(default_factory=list)
    prompt: list[TokenProb] = field(default_factory=list)
    end: Done | Failed | None = None

    @property
    def done(self) -> Done:
        """The successful end."""
        assert isinstance(self.end, Done), self.end
        return self.end

    @property
    def failed(self) -> Failed:
        """The unsuccessful end."""
        assert isinstance(self.end, Failed), self.end
        return self.end


class Served:
    """Submits tasks and collects what comes back."""

    def __init__(self, backend: LlamaBackend, drafter: Drafter | None = None) -> None:
        self.backend = backend
        self._emitted: queue.SimpleQueue[Sequence[FrameItem]] = queue.SimpleQueue()
        config = EngineConfig(n_slots=backend.card.n_slots, n_ctx=backend.card.n_ctx, spec_slots=2)
        self.engine = Engine(backend, config, self._emitted.put, drafter)
        # Steps without a limit of time: where a prompt is cut decides how its logits are rounded,
        # and the speed of the machine must not decide the texts that tests compare.
        budget = self.engine._step._budget
        budget.target_s = budget.idle_target_s = math.inf
        self._ids = itertools.count(1)

    def ask(self, prompt: str | list[int], **params: Any) -> Answer:
        """Run one task to its end."""
        return self.ask_all([prompt], **params)[0]

    def ask_all(self, prompts: Sequence[str | list[int]], **params: Any) -> list[Answer]:
        """Run tasks at once; return their answers in order."""
        return self.ask_each([(prompt, params) for prompt in prompts])

    def ask_each(self, asked: Sequence[tuple[str | list[int], Mapping[str, Any]]]) -> list[Answer]:
        """Run tasks at once, each with parameters of its own; return their answers in order."""
        tasks: list[EngineTask] = []
        for prompt, params in asked:
            values = read(SamplingParams(), {"temperature": 0, "n_predict": 16, **params})
            tokens = prompt if isinstance(prompt, list) else self.tokenize(prompt)
            triggers = params.get("triggers", ())
            task = EngineTask(
                TaskKey(next(self._ids)), tokens, values, slot=values.id_slot, triggers=triggers
            )
            tasks.append(replace(task, echo_from=params.get("echo_from", -1)))
        return self.run(tasks)

    def run(self, tasks: Sequence[EngineTask]) -> list[Answer]:
        """Run tasks at once; return their answers in order."""
        answers = {task.key.id: Answer() for task in tasks}
        # In one command, so that it is no matter of time who shares a batch with whom.
        self.engine.submit(Submit(tasks[0], tuple(tasks[1:])))
        while any(answer.end is None for answer in answers.values()):
            for message in self._emitted.get(timeout=60):
                if isinstance(message, Envelope):
                    _collect(answers[message.task.id], message.payload)
        return list(answers.values())

    def do(
        self, message: SlotAction | SetLora, folder: Path | str = "", slot: int = -1
    ) -> Terminal:
        """Run one task on the side to its end; raises `TaskError` if it fails."""
        side = SideTasks(self.engine, self.backend, str(folder))
        side.start(TaskKey(next(self._ids)), message, slot)
        while True:
            for answer in map(payload_of, self._emitted.get(timeout=60)):
                if isinstance(answer, Failed):
                    raise TaskError(answer.code, answer.message, param=answer.param)
                if isinstance(answer, Terminal):
                    return answer

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a prompt."""
        return self.backend.tokenize(text, add_special=True, parse_special=True)


def is_plausible(judge: Served, prompt: str, answer: Answer, **params: Any) -> None:
    """Check that the model alone ranks each greedy token within 2.0 of its best.

    Texts of equal prompts may part: llama.cpp's CPU kernels round one row otherwise than several
    and add attention up in the order of the cells, which lie otherwise in other company. With
    weights of 4 bits a flipped rounding changes a logit by up to 1.0, which turns a near tie;
    another prompt's continuation is much farther away.
    """
    tokens = judge.tokenize(prompt)
    for i, token in enumerate(answer.tokens):
        ask = {"n_predict": 1, "n_probs": 20} | params
        alone = judge.ask([*tokens, *answer.tokens[:i]], **ask).probs[0]
        ranked = {one: p for one, _, p in alone.top}
        assert token in ranked, (prompt, i)
        assert max(ranked.values()) - ranked[token] < 2.0, (prompt, i)


def _collect(answer: Answer, message: TaskMessage) -> None:
    match message:
        case Delta():
            answer.text += message.text
            answer.tokens += message.tokens
            answer.probs += message.probs
            answer.prompt += message.prompt
        case Done() | Failed():
            answer.end = message
