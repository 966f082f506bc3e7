"""The body of /infill."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.api.llamacpp.infill import plan
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Infill
from tests.gateway.cards import CARD

GAP: dict[str, Any] = {"input_prefix": "a", "input_suffix": "b"}


def test_a_gap_becomes_a_task_with_the_parameters_of_a_completion() -> None:
    body = {**GAP, "prompt": "p", "n_predict": 3, "stream": True, "stop": ["x"]}
    body["input_extra"] = [{"filename": "f", "text": "t"}, {"text": "u"}]
    planned = plan(body, CARD)
    (task,) = planned.tasks
    assert task.infill == Infill(prefix="a", suffix="b", extra=(("f", "t"), ("tmp", "u")))
    assert (task.prompt, task.params.n_predict, task.params.stop) == ("p", 3, ("x",))
    assert planned.stream
    assert len(plan({**GAP, "n": 2}, CARD).tasks) == 2


def test_prefix_and_suffix_may_be_tokens_or_both_mixed() -> None:
    (task,) = plan({"input_prefix": [1, "a", 2], "input_suffix": []}, CARD).tasks
    assert task.infill == Infill(prefix=(1, "a", 2), suffix=())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_prefix": None}, '"input_prefix" is required'),
        ({"input_suffix": None}, '"input_suffix" is required'),
        ({"input_suffix": 5}, '"input_suffix" must be a string or an array'),
        ({"input_prefix": [1, -1]}, "Prompt contains invalid tokens"),
        ({"input_prefix": [CARD.n_vocab]}, "Prompt contains invalid tokens"),
        (
            {"input_prefix": [1.5]},
            '"input_prefix" elements must be a string, a list of tokens, a JSON object containing '
            "a prompt string, or a list of mixed strings & tokens.",
        ),
        ({"prompt": 5}, '"prompt" must be a string'),
        (
            {"input_extra": "x"},
            '"input_extra" must be an array of {"filename": string, "text": string}',
        ),
        (
            {"input_extra": [{"filename": "f"}]},
            'extra_context chunk must contain a "text" field with a string value',
        ),
        (
            {"input_extra": [{"filename": 1, "text": "t"}]},
            'extra_context chunk\'s "filename" field must be a string',
        ),
    ],
)
def test_bad_bodies_are_refused_in_llama_servers_words(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(TaskError) as caught:
        plan({**GAP, **fields}, CARD)
    assert caught.value.message == message
    assert caught.value.param == next(iter(fields))


def test_a_model_without_the_tokens_names_each() -> None:
    with pytest.raises(TaskError) as caught:
        plan(GAP, replace(CARD, fim_missing=("prefix", "middle")))
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    assert caught.value.message == (
        "Infill is not supported by this model: prefix token is missing. middle token is missing. "
    )
