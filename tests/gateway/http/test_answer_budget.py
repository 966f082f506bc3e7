"""Answers that are gathered have a bound, so that no request fills the gateway's memory."""

import json

import pytest

from gateway.http import answer_budget
from gateway.http.answer_budget import AnswerBudget
from protocol.errors import ErrorCode, TaskError
from tests.gateway.inprocess import Running


async def test_an_answer_that_is_too_large_is_given_up(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_budget, "_MAX_OF_ONE", 10_000)
    large, small = {"prompt": "word " * 1000}, {"prompt": "a b"}
    answer = await gateway.post("/completion", large)
    assert answer.status_code == 400
    assert "n_probs" in answer.json()["error"]["message"]
    streamed = await gateway.events("/completion", large)
    assert json.loads(streamed[-1])["stop"] is True
    several = await gateway.post("/completion", {"prompt": "word " * 150, "n": 2})
    assert several.status_code == 400  # its choices count together
    for _ in range(5):  # more often than there are slots
        assert (await gateway.post("/completion", small)).status_code == 200


def test_many_answers_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_budget, "_MAX_BYTES", 100)
    budget = AnswerBudget()
    with budget.held("a") as one, budget.held("a") as other, budget.held("b") as third:
        one.take(30)
        other.take(20)
        with pytest.raises(TaskError) as caught:
            other.take(1)  # a tenant has as much as it leaves free
        assert caught.value.code is ErrorCode.UNAVAILABLE
        third.take(25)
        with pytest.raises(TaskError):
            third.take(1)
        assert budget.n_bytes == 75
    assert budget.n_bytes == 0
