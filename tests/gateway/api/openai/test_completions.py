"""Text completion bodies: log probabilities as a number, echo, best_of."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.api.openai.completions import plan
from gateway.api.reply import TaskOutcome
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.messages import Infill
from tests.gateway.cards import CARD, done


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": "1"}, "logprobs"),
        ({"suffix": 1}, "suffix"),
        ({"suffix": "x", "prompt": [1]}, "suffix"),
        ({"suffix": "x", "prompt": ["a", [1]]}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"echo": 1}, "echo"),
        ({"echo": True, "logprobs": 1, "suffix": "x"}, "echo"),
        ({"echo": True, "logprobs": 21}, "logprobs"),
        ({"echo": True, "logprobs": 1, "post_sampling_probs": True}, "post_sampling_probs"),
        ({"image_data": [{"id": 1}]}, "image_data[0].data"),
    ],
)
def test_what_is_not_there_yet_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan({"prompt": "a", **fields}, CARD)
    assert caught.value.param == param


@pytest.mark.parametrize("fields", [{"best_of": 1}, {"best_of": 2, "n": 2}, {"suffix": ""}])
def test_values_that_ask_for_nothing_pass(fields: dict[str, Any]) -> None:
    assert plan({"prompt": "a", **fields}, CARD).tasks


@pytest.mark.parametrize(
    ("fields", "asked"),
    [({}, False), ({"logprobs": 1}, True), ({"prompt": [1]}, True), ({"suffix": "x"}, False)],
)
def test_the_worker_is_asked_for_a_prompts_tokens_only_if_they_are_needed(
    fields: dict[str, Any], asked: bool
) -> None:
    (task,) = plan({"prompt": "a", "echo": True, **fields}, CARD).tasks
    assert task.echo is asked


def test_a_suffix_makes_each_prompt_the_text_before_a_gap() -> None:
    tasks = plan({"prompt": ["a", "b"], "suffix": "z"}, CARD).tasks
    assert [task.infill for task in tasks] == [
        Infill(prefix="a", suffix="z"),
        Infill(prefix="b", suffix="z"),
    ]
    assert not any(task.prompt for task in tasks)


def test_a_model_without_infill_tokens_cannot_insert() -> None:
    card = replace(CARD, fim_missing=("suffix",))
    assert plan({"prompt": "a", "suffix": ""}, card).tasks
    with pytest.raises(TaskError) as caught:
        plan({"prompt": "a", "suffix": "z"}, card)
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    assert caught.value.message.startswith("Infill is not supported by this model: suffix token")


LOG_PROBS = [(None, 0), (0, 1), (3, 3), (True, 1), (False, 0)]


@pytest.mark.parametrize(("logprobs", "n_probs"), LOG_PROBS)
def test_logprobs_is_a_number_here_and_may_be_a_flag(logprobs: int | None, n_probs: int) -> None:
    task = plan({"prompt": "a", "logprobs": logprobs}, CARD).tasks[0]
    assert task.params.n_probs == n_probs


def test_echo_stands_before_every_choice() -> None:
    planned = plan({"prompt": ["a", "b"], "n": 2, "echo": True}, CARD)
    outcome = TaskOutcome(text="!", tokens=(), probs=(), done=done())
    choices = planned.reply.result([outcome] * 4)["choices"]
    assert [choice["text"] for choice in choices] == ["a!", "a!", "b!", "b!"]
