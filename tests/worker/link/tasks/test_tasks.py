"""Hostile tasks between a gateway in the test and an engine over the fake backend."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.wire import messages as m
from protocol.wire.partial_answer import PartialAnswer
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import Render, SetSystemPrompt, SystemPromptSet
from tests.envelopes import of_task
from tests.worker.link.pair import Pair, generate
from worker.link.tasks import jobs
from worker.output.chat_parser.parser import ChatParser
from worker.prompt.prompt import PromptReader

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
RECURSES = "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(1) }}"
TEMPLATE = (
    "{% if messages[0].content == 'loop' %}" + LOOPS + "{% endif %}"
    "{% if messages[0].content == 'recurse' %}" + RECURSES + "{% endif %}"
    "{{ messages[0].content }}"
)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(f"ipc://{tmp_path}/wire", chat_template=TEMPLATE, fake_step_ms=4.0)
    pair.attach()
    pair.until(m.Ready)
    pair.gateway.send(m.Welcome(gateway="g", heartbeat_s=0.05))
    yield pair
    pair.close()


def chat(task_id: int, content: str) -> m.Envelope:
    messages = ({"role": "user", "content": content},)
    return m.Envelope(
        m.TaskKey(task_id),
        m.Generate(chat=m.Chat(messages=messages), params=SamplingParams(n_predict=2)),
    )


def endless(task_id: int) -> m.Envelope:
    params = SamplingParams(n_predict=-1, stream=True)
    return m.Envelope(m.TaskKey(task_id), m.Generate(prompt="hello", params=params))


def ends(pair: Pair, task_id: int) -> list[m.Terminal]:
    """The terminal messages of a task."""
    said = of_task(pair.gateway.heard, task_id)
    return [one for one in said if isinstance(one, m.Terminal)]


def end_of(pair: Pair, task_id: int) -> m.Terminal:
    """Wait for the end of a task; it has only one."""
    pair.turn_until(lambda: bool(ends(pair, task_id)))
    (end,) = ends(pair, task_id)
    return end


def failure_of(pair: Pair, task_id: int) -> m.Failed:
    end = end_of(pair, task_id)
    assert isinstance(end, m.Failed), end
    return end


def test_a_template_that_recurses_fails_its_own_task(pair: Pair) -> None:
    pair.gateway.send(chat(1, "recurse"), chat(2, "hi"))
    assert failure_of(pair, 1).code is ErrorCode.INVALID_REQUEST
    assert isinstance(end_of(pair, 2), m.Done)


@pytest.mark.slow
def test_a_template_that_loops_is_ended_while_a_stream_goes_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_LIMIT_S", 0.3)
    pair.gateway.send(endless(1))
    pair.until(m.Started)
    n_deltas = len(pair.gateway.of(m.Delta))
    pair.gateway.send(chat(2, "loop"))
    failed = failure_of(pair, 2)
    assert len(pair.gateway.of(m.Delta)) > n_deltas + 3
    assert failed.code is ErrorCode.INVALID_REQUEST
    assert "more than 0.3 s to be prepared" in failed.message
    pair.gateway.send(chat(3, "hi"))
    assert isinstance(end_of(pair, 3), m.Done)
    assert 0 < max(heartbeat.stats.link_lag_s for heartbeat in pair.heartbeats) < 0.25
    pair.gateway.send(m.Envelope(m.TaskKey(1), m.Cancel()))
    end_of(pair, 1)


class Held:
    """A reader whose work waits until the test lets it go on."""

    def __init__(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = threading.Event()
        self.released = threading.Event()
        prepare = PromptReader.prepare

        def held(reader: PromptReader, *args: Any) -> Any:
            self.started.set()
            assert self.released.wait(10)
            return prepare(reader, *args)

        monkeypatch.setattr(PromptReader, "prepare", held)
        self.pair = pair

    def wait(self) -> None:
        self.pair.turn_until(self.started.is_set)


def test_a_task_is_cancelled_while_it_is_prepared(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(pair, monkeypatch)
    pair.gateway.send(endless(1), endless(2))
    held.wait()
    pair.gateway.send(m.Envelope(m.TaskKey(1), m.Cancel()))
    end = end_of(pair, 1)
    assert isinstance(end, m.Done)
    assert end.finish is m.Finish.CANCELLED
    assert not pair.link.is_idle, "a thread still works for it"
    held.released.set()
    pair.until(m.Started)
    pair.gateway.send(m.Envelope(m.TaskKey(2), m.Cancel()))
    end_of(pair, 2)
    pair.turn_until(lambda: pair.link.is_idle)
    assert len(ends(pair, 1)) == len(ends(pair, 2)) == len(pair.gateway.of(m.Started)) == 1


def test_drain_waits_for_what_is_being_prepared(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(pair, monkeypatch)
    pair.gateway.send(chat(1, "hi"), m.Drain())
    held.wait()
    pair.until(m.Draining)
    assert not pair.link.is_idle
    held.released.set()
    assert isinstance(end_of(pair, 1), m.Done)
    pair.turn_until(lambda: pair.link.is_idle)


def test_what_was_prepared_for_a_lost_gateway_is_dropped(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(pair, monkeypatch)
    pair.gateway.send(chat(1, "hi"))
    held.wait()
    pair.gateway.close()
    pair.gateway.open()
    pair.gateway.heard.clear()
    pair.until(m.Ready)
    held.released.set()
    pair.gateway.send(chat(2, "hi"))
    assert isinstance(end_of(pair, 2), m.Done)
    assert ends(pair, 1) == []


def test_choices_share_a_job_and_others_do_not(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(pair, monkeypatch)
    pair.gateway.send(chat(1, "hi"), chat(2, "hi"), chat(3, "other"))
    held.wait()
    preparing = pair.link.tasks._preparing
    assert preparing[m.TaskKey(1)] is preparing[m.TaskKey(2)]
    assert preparing[m.TaskKey(1)] is not preparing[m.TaskKey(3)]
    held.released.set()
    for task_id in (1, 2, 3):
        assert isinstance(end_of(pair, task_id), m.Done)


def test_a_system_prompt_holds_for_what_comes_after_it(pair: Pair) -> None:
    counted = m.Generate(prompt="", params=SamplingParams(n_predict=0))
    pair.gateway.send(
        m.Envelope(m.TaskKey(1), counted), m.Envelope(m.TaskKey(2), SetSystemPrompt(prompt="abc"))
    )
    pair.gateway.send(m.Envelope(m.TaskKey(2), m.Cancel()), m.Envelope(m.TaskKey(3), counted))
    ends_in_order = [end_of(pair, task_id) for task_id in (1, 2, 3)]
    assert isinstance(ends_in_order[1], SystemPromptSet), "an order is carried out"
    read = [end.n_prompt for end in ends_in_order if isinstance(end, m.Done)]
    assert read == [1, 4]


@pytest.mark.parametrize("error", [RuntimeError("x"), RecursionError(), MemoryError()])
def test_any_exception_while_preparing_is_its_tasks_own(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_reader: PromptReader, _message: Render) -> None:
        raise error

    monkeypatch.setattr(PromptReader, "render", fail)
    pair.gateway.send(m.Envelope(m.TaskKey(7), Render(chat=m.Chat())), chat(8, "hi"))
    assert failure_of(pair, 7).code is ErrorCode.INTERNAL
    assert isinstance(end_of(pair, 8), m.Done)
    assert "task=7" in caplog.text
    assert pair.link.tasks.n_faults == 1
    pair.turn_until(lambda: pair.heartbeats[-1].stats.n_faults == 1)


def test_a_parser_that_fails_ends_its_own_task(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_parser: ChatParser, _text: str) -> None:
        raise RecursionError

    monkeypatch.setattr(ChatParser, "feed", fail)
    pair.gateway.send(endless(1))
    continued = m.Chat(
        messages=({"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}),
        continue_final_message=True,
    )
    params = SamplingParams(n_predict=50, stream=True)
    pair.gateway.send(m.Envelope(m.TaskKey(2), m.Generate(chat=continued, params=params)))
    assert failure_of(pair, 2).code is ErrorCode.INTERNAL
    assert "task=2" in caplog.text
    pair.until(m.Delta, len(pair.gateway.of(m.Delta)) + 3)
    pair.gateway.send(m.Envelope(m.TaskKey(1), m.Cancel()))
    end_of(pair, 1)
    deadline = time.monotonic() + 10
    while not pair.link.is_idle or pair.engine.n_busy:
        assert time.monotonic() < deadline
        pair.link.turn()
    assert len(ends(pair, 2)) == 1
    assert repr(pair.link._sessions.grants).endswith("0:0/3>")  # no credit is in use


def test_an_answer_that_pauses_goes_on_when_the_gateway_says_so(pair: Pair) -> None:
    pair.gateway.send(generate(1, "abc"))
    pair.until(m.Done)
    partial = PartialAnswer(
        tokens=tuple(t for one in pair.gateway.of(m.Delta) for t in one.tokens)[:2]
    )
    first = generate(2, "abc")
    assert isinstance(first.payload, m.Generate)
    again = replace(first.payload, partial_answer=replace(partial, pause_after_prefill=True))
    pair.gateway.send(m.Envelope(m.TaskKey(2), again))
    pair.turn_until(lambda: pair.gateway.of(m.PromptRead)[-1].is_paused)
    pair.gateway.send(m.Envelope(m.TaskKey(9), m.Proceed()))  # of no task
    pair.gateway.send(m.Envelope(m.TaskKey(2), m.Proceed()))
    assert pair.until(m.Done, 2)[1].n_predicted == 4
