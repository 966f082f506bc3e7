"""The table from failures to answers."""

import json
import logging
from typing import Any

import pytest

from gateway.http.errors import ANSWERS, RequestRefused, refused_response, task_error_response
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from tests.gateway.inprocess import Running, until


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (ErrorCode.INVALID_REQUEST, 400, "invalid_request_error"),
        (ErrorCode.CONTEXT_EXCEEDED, 400, "exceed_context_size_error"),
        (ErrorCode.NOT_FOUND, 404, "not_found_error"),
        (ErrorCode.NOT_SUPPORTED, 501, "not_supported_error"),
        (ErrorCode.OVERLOADED, 429, "rate_limit_error"),
        (ErrorCode.UNAVAILABLE, 503, "unavailable_error"),
        (ErrorCode.INTERNAL, 500, "server_error"),
    ],
)
def test_every_code_has_its_answer(code: ErrorCode, status: int, kind: str) -> None:
    response = task_error_response(TaskError(code, "why"))
    error = json.loads(bytes(response.body))["error"]
    assert response.status_code == error["code"] == status
    assert (error["type"], error["message"]) == (kind, "why")


def test_the_table_is_complete() -> None:
    assert set(ANSWERS) == set(ErrorCode)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_failure_says_when_to_retry_or_that_it_is_no_use(code: ErrorCode) -> None:
    headers = task_error_response(TaskError(code, "why")).headers
    assert ("retry-after" in headers) != (headers.get("x-should-retry") == "false")


def test_details_of_a_worker_that_belong_together_may_come_alone() -> None:
    error = TaskError(ErrorCode.OVERLOADED, "full", detail={"queue_position": 3})
    assert task_error_response(error).headers["x-llamapool-queue-wait-s"] == "0.0"


@pytest.mark.parametrize(("wait_s", "header"), [(7, "7"), (0, "1"), (900, "120")])
def test_retry_after_is_measured_and_bounded(wait_s: int, header: str) -> None:
    error = TaskError(ErrorCode.OVERLOADED, "full", detail={"retry_after_s": wait_s})
    assert task_error_response(error).headers["retry-after"] == header


def _text(response: Any) -> str:
    return bytes(response.body).decode()


def test_handlers_say_code_first_and_middleware_last() -> None:
    named = task_error_response(InvalidRequest("bad", param="top_k"))
    assert _text(named) == (
        '{"error":{"code":400,"message":"bad","type":"invalid_request_error","param":"top_k"}}'
    )
    refused = refused_response(RequestRefused(404, "File Not Found", "not_found_error"))
    assert _text(refused) == (
        '{"error":{"message":"File Not Found","type":"not_found_error","code":404}}'
    )
    assert named.headers["content-type"] == "application/json; charset=utf-8"


def test_a_prompt_that_does_not_fit_tells_both_numbers() -> None:
    detail = {"n_prompt_tokens": 701, "n_ctx": 512, "retry_after_s": 3}
    response = task_error_response(TaskError(ErrorCode.CONTEXT_EXCEEDED, "long", detail=detail))
    assert _text(response) == (
        '{"error":{"code":400,"message":"long","type":"exceed_context_size_error",'
        '"n_prompt_tokens":701,"n_ctx":512}}'
    )


@pytest.mark.parametrize(
    ("method", "headers", "status"), [("GET", {}, 404), ("POST", {"x": "a" * 40_000}, 431)]
)
async def test_anthropics_clients_find_their_type_in_every_refusal(
    gateway: Running, method: str, headers: dict[str, str], status: int
) -> None:
    response = await gateway.client.request(method, "/v1/messages", headers=headers)
    assert (response.status_code, response.json()["type"]) == (status, "error")


@pytest.mark.parametrize(
    "response",
    [
        task_error_response(InvalidRequest("x" * 100_000 + " is odd", param="y" * 100_000)),
        refused_response(RequestRefused(400, "x" * 100_000 + " is odd")),
    ],
)
def test_what_a_client_sent_is_not_quoted_at_length(response: Any) -> None:
    assert len(response.body) < 5000
    assert json.loads(_text(response))["error"]["message"].endswith("x is odd")


@pytest.mark.parametrize(
    "asked",
    [
        ("/completion", {"prompt": "a b"}, None),
        ("/completion", {"prompt": "my poem", "top_k": "my poem"}, "invalid top_k"),
        ("/completion", ["my poem"], "invalid request"),
        ("/nowhere", {}, "File Not Found"),
        ("/rerank", {"query": "my poem", "documents": ["a"]}, "This server does not"),
    ],
)
async def test_a_request_that_failed_has_the_cause_in_its_line(
    gateway: Running, caplog: pytest.LogCaptureFixture, asked: tuple[str, Any, str | None]
) -> None:
    path, body, cause = asked
    caplog.set_level(logging.INFO, "gateway.pool.requests")
    await gateway.post(path, body)
    await until(lambda: "request done" in caplog.messages)
    (line,) = [vars(one) for one in caplog.records if one.message == "request done"]
    assert "poem" not in str(line)
    if cause is None:
        assert line["cause"] is None
    else:
        assert line["cause"].startswith(cause)
