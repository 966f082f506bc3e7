"""The choices of one prompt: read once, with a seed and a sampler of their own."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import TaskError
from protocol.wire.messages import Chat, Envelope, Generate, TaskKey
from protocol.wire.partial_answer import PartialAnswer
from protocol.wire.sampling import SamplingParams
from worker.engine.fake.backend import FakeBackend
from worker.link.tasks.jobs import job_of
from worker.prompt.prompt import Prepared, PromptReader
from worker.prompt.prompt_log import PromptLog

CHAT = Chat(messages=({"role": "user", "content": "hello"},))


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were tokenized."""
    found: list[str] = []
    tokenize = FakeBackend.tokenize

    def noted(self: FakeBackend, text: str, **kwargs: Any) -> list[int]:
        found.append(text)
        return tokenize(self, text, **kwargs)

    monkeypatch.setattr(FakeBackend, "tokenize", noted)
    return found


def prepare(texts: list[str], *tasks: Generate, log: PromptLog | None = None) -> list[Any]:
    config = WorkerConfig(backend="fake", n_ctx=512)
    reader = PromptReader(FakeBackend(config), cuts_long=False, prompt_log=log)
    texts.clear()
    job = job_of(reader, [Envelope(TaskKey(i), one, i) for i, one in enumerate(tasks)])
    found = job.run()
    assert isinstance(found, dict)
    return [found[TaskKey(i)] for i in range(len(tasks))]


def choices(n: int, **fields: Any) -> list[Generate]:
    return [Generate(params=SamplingParams(seed=5 + i), **fields) for i in range(n)]


@pytest.mark.parametrize("fields", [{"prompt": "hello"}, {"chat": CHAT}], ids=["prompt", "chat"])
def test_a_prompt_is_read_once_for_all_its_choices(texts: list[str], fields: Any) -> None:
    found = prepare(texts, *choices(4, **fields))
    assert len(texts) == 1
    assert all(isinstance(one, Prepared) for one in found)
    tasks = [one.task for one in found]
    assert [task.params.seed for task in tasks] == [5, 6, 7, 8]
    assert [task.key for task in tasks] == [TaskKey(i) for i in range(4)]
    assert [task.slot for task in tasks] == [0, 1, 2, 3]
    assert (
        len({id(task.sampler) for task in tasks}) == len({id(task.prompt) for task in tasks}) == 4
    )
    assert len({id(one.parser) for one in found if one.parser is not None}) in (0, 4)
    alone = prepare(texts, replace(choices(1, **fields)[0], params=SamplingParams(seed=8)))
    first = replace(tasks[3], key=TaskKey(0), slot=0)
    assert alone[0].task == first


def test_what_each_choice_has_said_is_its_own(texts: list[str]) -> None:
    one, other = choices(2, prompt="hello")
    said = PartialAnswer(tokens=(97, 98), seed=3)
    first, second = prepare(texts, one, replace(other, partial_answer=said))
    assert len(texts) == 1
    assert first.task.resumed is None
    assert second.task.resumed.text == "ab"


def test_tasks_that_differ_in_more_than_the_seed_are_read_each(texts: list[str]) -> None:
    one = choices(1, prompt="hello")[0]
    other = replace(one, params=replace(one.params, n_predict=3))
    third = replace(one, salt="tenant")
    found = prepare(texts, one, other, third)
    assert len(texts) == 3
    assert [one.task.params.n_predict for one in found] == [-1, 3, -1]
    assert [one.task.salt for one in found] == ["", "", "tenant"]


def test_a_prompt_that_is_refused_is_read_once(texts: list[str]) -> None:
    found = prepare(texts, *choices(3, prompt="x" * 600))
    assert len(texts) == 1
    assert all(isinstance(one, TaskError) and "exceeds" in one.message for one in found)


def test_each_choice_is_logged_with_its_own_task(
    texts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        prepare(texts, *choices(2, prompt="hello"), log=PromptLog(logs=True))
    assert [vars(record)["task"] for record in caplog.records if record.message == "prompt"] == [
        0,
        1,
    ]
