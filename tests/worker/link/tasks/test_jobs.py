"""How large the preparation of a task counts, and so how long it may take."""

import gc
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.wire.messages import Chat, Envelope, Generate, Infill, TaskKey
from protocol.wire.partial_answer import PartialAnswer
from protocol.wire.sampling import SamplingParams
from worker.engine.fake.backend import FakeBackend
from worker.link.tasks.jobs import job_of
from worker.link.tasks.preparation import PreparationJob
from worker.prompt.prompt import PromptReader

TEXT = "x" * 100_000
CALL = {"type": "function", "function": {"name": "f", "arguments": TEXT}}


def job(*tasks: Generate) -> PreparationJob:
    reader = PromptReader(FakeBackend(WorkerConfig(backend="fake")), cuts_long=False)
    return job_of(reader, [Envelope(TaskKey(i), task) for i, task in enumerate(tasks)])


@pytest.mark.parametrize(
    "message",
    [
        {"content": TEXT},
        {"content": [{"type": "text", "text": TEXT[:50_000]}] * 2},
        {"content": None, "reasoning_content": TEXT},
        {"content": None, "tool_calls": [CALL]},
    ],
    ids=["text", "parts", "reasoning", "arguments"],
)
def test_every_text_of_a_chat_counts(message: dict[str, Any]) -> None:
    chat = Chat(messages=({"role": "assistant", **message},))
    assert job(Generate(params=SamplingParams(), chat=chat)).is_large


def test_tools_and_variables_count() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": TEXT}}
    assert job(Generate(params=SamplingParams(), chat=Chat(tools=(tool,)))).is_large
    assert job(Generate(params=SamplingParams(), chat=Chat(kwargs={"a": TEXT}))).is_large
    assert not job(Generate(params=SamplingParams(), chat=Chat())).is_large


@pytest.mark.parametrize(
    "gap",
    [Infill(prefix=TEXT), Infill(suffix=TEXT), Infill(extra=(("a.py", TEXT),))],
    ids=["prefix", "suffix", "extra"],
)
def test_what_stands_around_a_gap_counts(gap: Infill) -> None:
    assert job(Generate(params=SamplingParams(), infill=gap)).is_large


def test_choices_count_their_prompt_each_and_what_they_continue() -> None:
    one = Generate(params=SamplingParams(), prompt=TEXT[:30_000])
    partial = Generate(
        params=SamplingParams(), prompt="x", partial_answer=PartialAnswer(tokens=(1,) * 2_000)
    )
    assert not job(one, one).is_large
    assert job(one, one, one).is_large
    assert job(Generate(params=SamplingParams(), prompt="x"), partial).is_large


def test_nothing_is_left_of_a_task_that_is_refused() -> None:
    """Sounds of 15 MB that did not fit the context stayed until garbage was looked for."""
    gc.collect()
    gc.disable()
    try:
        refused = job(Generate(params=SamplingParams(), prompt=TEXT, media=(b"sound",)))
        refused.outcome = refused.run()
        assert "exceeds the available context" in str(refused.outcome)
        del refused
        left = [one for one in gc.get_objects() if isinstance(one, Generate)]
        assert not [one for one in left if one.media == (b"sound",)]
    finally:
        gc.enable()
