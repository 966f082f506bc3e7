"""Text completion bodies: log probabilities as a number, echo, best_of."""

from typing import Any

import pytest

from gateway.openai.completions import plan
from gateway.reply import Outcome
from protocol.errors import InvalidRequest
from tests.gateway.cards import CARD, done


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"echo": 1}, "echo"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"echo": True, "prompt": [1]}, "echo"),
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


@pytest.mark.parametrize(("logprobs", "n_probs"), [(None, 0), (0, 1), (3, 3)])
def test_logprobs_is_a_number_here(logprobs: int | None, n_probs: int) -> None:
    task = plan({"prompt": "a", "logprobs": logprobs}, CARD).tasks[0]
    assert task.params.n_probs == n_probs


def test_echo_stands_before_every_choice() -> None:
    planned = plan({"prompt": ["a", "b"], "n": 2, "echo": True}, CARD)
    outcome = Outcome(text="!", tokens=(), probs=(), done=done())
    choices = planned.reply.result([outcome] * 4)["choices"]
    assert [choice["text"] for choice in choices] == ["a!", "a!", "b!", "b!"]
