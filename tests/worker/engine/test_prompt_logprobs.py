"""Prompts whose own tokens are told, with how likely they were."""

import math
from dataclasses import replace
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import TaskError
from protocol.wire.messages import Delta, Generate, PromptRead
from protocol.wire.sampling import SamplingParams
from tests.worker.engines import Rig
from tests.worker.prompt.read_task import read_task
from worker.engine.fake.backend import BOS, FakeBackend
from worker.engine.task import Submit
from worker.prompt.prompt import PromptReader

PROMPT = "a prompt that is longer than the rows of logits"


def prompt_of(rig: Rig, task_id: int) -> tuple[Delta, ...]:
    return tuple(m for m in rig.of(task_id) if isinstance(m, Delta) and m.prompt)


def ask(rig: Rig, prompt: str = PROMPT, *, echo_from: int = 0, **params: Any) -> int:
    task = replace(rig.task(prompt, **params), echo_from=echo_from)
    rig.engine.submit(Submit(task))
    return task.key.id


@pytest.mark.parametrize("n_predict", [0, 3])
def test_every_token_but_the_first_is_judged_once(n_predict: int) -> None:
    rig = Rig(n_slots=2)
    task_id = ask(rig, n_probs=1, cache_prompt=False, n_predict=n_predict)
    rig.finish()
    (delta,) = prompt_of(rig, task_id)
    assert [one.id for one in delta.prompt] == [BOS, *PROMPT.encode()]
    assert math.isnan(delta.prompt[0].p)
    assert [one.p for one in delta.prompt[1:]] == [-0.5] * len(PROMPT)
    said = [one for one in rig.of(task_id) if not isinstance(one, PromptRead)]
    assert said.index(delta) == 1, "right after Started"
    assert rig.done(task_id).n_predicted == n_predict


def test_others_go_on_and_say_the_same_beside_a_judged_prompt() -> None:
    alone = Rig(n_slots=1)
    first = alone.submit("others", n_predict=30)
    alone.finish()
    rig = Rig(n_slots=3)
    ids = [rig.submit("others", n_predict=30)]
    probed = [ask(rig, f"{i} {PROMPT}", n_probs=1, cache_prompt=False) for i in range(2)]
    rig.finish()
    assert rig.text(ids[0]) == alone.text(first)
    for task_id in probed:
        (delta,) = prompt_of(rig, task_id)
        assert len(delta.prompt) == len(PROMPT) + 3


def test_a_prompt_that_is_read_twice_is_judged_once() -> None:
    """What a task had read is lost where another's logits are not numbers, as by a preemption."""
    rig = Rig(n_slots=2)
    judged = ask(rig, PROMPT * 3, n_probs=1, cache_prompt=False)
    rig.turn()
    rig.submit("[[nan]]")
    while not rig.engine.counters.n_preempted:
        rig.turn()
    assert not prompt_of(rig, judged)
    rig.finish()
    (delta,) = prompt_of(rig, judged)
    assert len(delta.prompt) == 1 + len(PROMPT) * 3
    assert rig.done(judged).n_predicted == 8


def test_without_probabilities_the_tokens_are_told_and_the_cache_is_used() -> None:
    rig = Rig(n_slots=1)
    rig.submit(PROMPT)
    rig.finish()
    task_id = ask(rig, echo_from=1)
    rig.finish()
    (delta,) = prompt_of(rig, task_id)
    (told,) = delta.prompt
    assert told.piece.decode() == PROMPT, "as one: a gateway takes 6 us to read each"
    assert math.isnan(told.p)
    assert rig.done(task_id).n_cached > 0


@pytest.mark.parametrize(("prompt", "echo_from"), [("ab", 1), ((97, 98), 0), (("a", 98), 1)])
def test_only_a_bos_of_ours_is_kept_back(prompt: Any, echo_from: int) -> None:
    reader = PromptReader(FakeBackend(WorkerConfig(backend="fake", n_ctx=64)), cuts_long=True)
    params = SamplingParams(n_probs=1)
    message = Generate(prompt=prompt, params=params, echo=True)
    task = read_task(reader, message)
    assert task.echo_from == echo_from
    assert not task.params.cache_prompt, "only what is read can be judged"


def test_a_prompt_that_would_be_cut_is_not_told() -> None:
    reader = PromptReader(FakeBackend(WorkerConfig(backend="fake", n_ctx=64)), cuts_long=True)
    with pytest.raises(TaskError, match="exceeds the available context"):
        read_task(reader, Generate(prompt="x" * 99, params=SamplingParams(), echo=True))


def test_of_a_very_long_prompt_fewer_alternatives_are_told() -> None:
    """They come in one frame, and a gateway takes no other meanwhile."""
    reader = PromptReader(FakeBackend(WorkerConfig(backend="fake", n_ctx=65536)), cuts_long=True)
    prompt = (97,) * 40_000
    for n_probs in (0, 1, 5):
        params = SamplingParams(n_probs=n_probs)
        read_task(reader, Generate(prompt=prompt, params=params, echo=True))
    with pytest.raises(TaskError, match="40000 tokens with 20 alternatives each"):
        params = SamplingParams(n_probs=20)
        read_task(reader, Generate(prompt=prompt, params=params, echo=True))


@pytest.mark.parametrize(("adds_space", "text"), [(True, b"ha S"), (False, b" ha S")])
def test_a_space_that_the_tokenizer_put_is_no_part_of_the_prompt(
    adds_space: bool, text: bytes
) -> None:
    rig = Rig(n_slots=1)
    rig.backend.vocabulary = replace(rig.backend.vocabulary, adds_space=adds_space)
    task_id = ask(rig, " ha S", echo_from=1)
    rig.finish()
    (delta,) = prompt_of(rig, task_id)
    assert b"".join(one.piece for one in delta.prompt) == text
