"""Chats whose worker is lost: reasoning and calls half said go on where they stopped."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.wire.messages import Chat, Generate, Infill
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read
from tests.worker.chat_templates import HERMES, OPENER, THINKER
from tests.worker.continuing import Asker, Told
from tests.worker.engines import Rig
from worker.engine.fake.backend import FakeBackend
from worker.engine.task import Submit
from worker.prompt.prompt import PromptReader

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "grüße", "b": {"c": 1}}}\n</tool_call>'

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "words": (HERMES, "Hello, wörld!", {}),
    "a call": (HERMES, CALL, {}),
    "words and two calls": (HERMES, f"Let me see.\n{CALL}\n{CALL}", {}),
    "reasoning": (THINKER, "<think>\nHm, a 🙂.\n</think>\n\nYes.", {}),
    "reasoning and a call": (THINKER, f"<think>\nHm.\n</think>\n\n{CALL}", {}),
    "reasoning that the prompt opened": (OPENER, "Hm.\n</think>\n\nYes.", {}),
    "a stop string": (HERMES, "one STO STOP two", {"stop": ["STOP"]}),
    "a call that is cut": (HERMES, CALL, {"n_predict": 50}),
}


@cache
def reader_of(template: str) -> PromptReader:
    """A reader with the template, which takes longer to compile than an answer to make."""
    rig = Rig(n_slots=1, n_ctx=1024)
    config = WorkerConfig(backend="fake", n_slots=1, n_ctx=1024, chat_template=template)
    rig.backend.card = FakeBackend(config).card
    return PromptReader(rig.backend, cuts_long=False)


def asker(template: str) -> Asker:
    rig = Rig(n_slots=1, n_ctx=1024)

    def run(task: Any) -> Any:
        rig.engine.submit(Submit(task))
        rig.finish()
        return [one for one in rig.envelopes if one.task == task.key]

    return Asker(reader_of(template), run)


def chat(say: str, *, stream: bool, template: str = HERMES, **params: Any) -> Generate:
    """Let the fake model say something; what the template writes after it counts as said."""
    n_after = len("\n[assistant]") + len("<think>\n") * (template == OPENER)
    values = read(SamplingParams(), {"temperature": 0, "n_predict": 500, "stream": stream} | params)
    content = f"[[say {'~' * n_after}{say}]]"
    return Generate(
        chat=Chat(messages=({"role": "user", "content": content},), tools=(TOOL,)), params=values
    )


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_cut_after_any_delta_changes_nothing(case: str, stream: bool) -> None:
    template, say, params = CASES[case]
    message = chat(say, stream=stream, template=template, **params)
    first = asker(template)
    whole, deltas = first.whole(message)
    assert whole.done is not None and (not stream or len(deltas) > 10)
    assert bool(whole.calls) is ("call" in case) and bool(whole.reasoning) is ("reasoning" in case)
    for n in range(len(deltas) + 1):
        again = asker(template).cut(message, whole, deltas[:n])
        assert again.answer == whole.answer, (n, deltas[:n])


def test_the_id_of_a_call_is_said_once() -> None:
    message = chat(CALL, stream=True)
    first = asker(HERMES)
    whole, deltas = first.whole(message)
    named = next(n for n, delta in enumerate(deltas) if delta.tool_calls)
    for n in (named + 1, named + 3, len(deltas)):
        again = asker(HERMES).cut(message, whole, deltas[:n])
        assert again.calls == whole.calls


def test_a_gap_is_filled_on_where_it_was_left() -> None:
    params = read(SamplingParams(), {"temperature": 1, "seed": 4, "n_predict": 12, "stream": True})
    message = Generate(infill=Infill(prefix="def f(", suffix=")"), prompt="x", params=params)
    whole, deltas = asker(HERMES).whole(message)
    for n in range(len(deltas) + 1):
        assert asker(HERMES).cut(message, whole, deltas[:n]).answer == whole.answer


def test_an_answer_that_was_over_gets_its_end_and_what_was_not_passed_on() -> None:
    for n_text in (0, 3):
        message = chat("All of it.", stream=True)
        whole, deltas = asker(HERMES).whole(message)
        told = Told(started=whole.started)
        for delta in deltas:
            told.add(delta)
        partial = replace(told.partial, n_text=n_text)
        rest = asker(HERMES).deltas(replace(message, partial_answer=partial), told)
        assert "".join(delta.text for delta in rest) == whole.text[n_text:]
        assert not any(delta.tokens for delta in rest)
        assert told.done is not None and told.done.n_predicted == len(whole.tokens)
