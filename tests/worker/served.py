"""An engine on its own thread over a real backend, asked like a client would."""

import itertools
import queue
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.facts import TokenProb
from protocol.messages import Delta, Done, Failed, Message, TaskMessage
from protocol.sampling import SamplingParams
from protocol.schema import read
from worker.engine.engine import Engine, EngineConfig
from worker.engine.task import Submit, Task
from worker.llama.backend import LlamaBackend


@dataclass
class Answer:
    """Everything that came for one task."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProb] = field(default_factory=list)
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

    def __init__(self, backend: LlamaBackend) -> None:
        self.backend = backend
        self._emitted: queue.SimpleQueue[Sequence[Message]] = queue.SimpleQueue()
        config = EngineConfig(n_slots=backend.card.n_slots, n_ctx=backend.card.n_ctx)
        self.engine = Engine(backend, config, self._emitted.put)
        self._ids = itertools.count(1)

    def ask(self, prompt: str | list[int], **params: Any) -> Answer:
        """Run one task to its end."""
        return self.ask_all([prompt], **params)[0]

    def ask_all(self, prompts: Sequence[str | list[int]], **params: Any) -> list[Answer]:
        """Run tasks at once; return their answers in order."""
        values = read(SamplingParams(), {"temperature": 0, "n_predict": 16} | params)
        answers: dict[int, Answer] = {}
        for prompt in prompts:
            tokens = prompt if isinstance(prompt, list) else self.tokenize(prompt)
            task = Task(next(self._ids), 0, tokens, values)
            answers[task.task_id] = Answer()
            self.engine.submit(Submit(task))
        while any(answer.end is None for answer in answers.values()):
            for message in self._emitted.get(timeout=60):
                if isinstance(message, TaskMessage):
                    _collect(answers[message.task_id], message)
        return list(answers.values())

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a prompt."""
        return self.backend.tokenize(text, add_special=True, parse_special=True)


def _collect(answer: Answer, message: TaskMessage) -> None:
    match message:
        case Delta():
            answer.text += message.text
            answer.tokens += message.tokens
            answer.probs += message.probs
        case Done() | Failed():
            answer.end = message
