"""Answers that are gathered have a bound, so that no request fills the gateway's memory."""

import asyncio
import json
import platform
import threading

import orjson
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http import answer_budget
from gateway.http.answer_budget import AnswerBudget, AnswerReservation, return_free_memory
from gateway.routes import generate
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


async def test_after_a_large_answer_free_memory_is_given_back(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = threading.Event()
    monkeypatch.setattr(answer_budget, "_LARGE", 10_000)
    monkeypatch.setattr(answer_budget, "return_free_memory", given_back.set)
    await gateway.post("/completion", {"prompt": "a b"})
    assert not given_back.is_set()
    await gateway.post("/completion", {"prompt": "word " * 1000})
    assert await asyncio.to_thread(given_back.wait, 5)


def test_free_memory_can_be_given_back() -> None:
    is_glibc = platform.libc_ver()[0] == "glibc"
    free = [bytes(1000) for _ in range(10_000)]
    kept = free[::100]
    del free
    assert return_free_memory() == is_glibc
    assert len(kept) == 100


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


async def test_an_answer_holds_its_bytes_until_its_client_has_taken_it(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that read slowly held any number of answers of 186 MB, which nothing counted."""
    budgets: list[AnswerBudget] = []
    held: list[int] = []
    take = AnswerReservation.take

    def noted(self: AnswerReservation, n: int) -> None:
        budgets.append(self._budget)
        take(self, n)

    class Sent(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            held.append(budgets[0].n_bytes)
            await super().__call__(scope, receive, send)

    monkeypatch.setattr(AnswerReservation, "take", noted)
    monkeypatch.setattr(generate, "json_response", lambda value, *_: Sent(orjson.dumps(value)))
    assert (await gateway.post("/completion", {"prompt": "a b c"})).status_code == 200
    assert held[0] > 0 and budgets[0].n_bytes == 0
