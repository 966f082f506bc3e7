"""Maps failures to HTTP answers: one table of status, type and retry advice.

Bodies are llama-server's: their keys are `code, message, type` from handlers, `message, type, code`
from middlewares; those of Anthropic's API also have `"type": "error"`. Deterministic failures
carry `x-should-retry: false`, because OpenAI's clients retry every 5xx otherwise; the others carry
`Retry-After`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from gateway.pool.requests.record import REQUEST, RequestRecord
from protocol.errors import ErrorCode, NotStored, TaskError

Headers = dict[str, str]

JSON_TYPE = "application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """HTTP answer of one error code."""

    status: int
    kind: str
    is_transient: bool = False
    """Whether the same request may succeed later."""


ANSWERS: Mapping[ErrorCode, ErrorAnswer] = {
    ErrorCode.INVALID_REQUEST: ErrorAnswer(400, "invalid_request_error"),
    ErrorCode.CONTEXT_EXCEEDED: ErrorAnswer(400, "exceed_context_size_error"),
    ErrorCode.TOO_LARGE: ErrorAnswer(413, "invalid_request_error"),
    ErrorCode.NOT_FOUND: ErrorAnswer(404, "not_found_error"),
    ErrorCode.NOT_SUPPORTED: ErrorAnswer(501, "not_supported_error"),
    # A full pool is healthy: a 5xx would make proxies eject it (nginx max_fails, Envoy outliers).
    ErrorCode.OVERLOADED: ErrorAnswer(429, "rate_limit_error", is_transient=True),
    ErrorCode.RATE_LIMITED: ErrorAnswer(429, "rate_limit_error", is_transient=True),
    ErrorCode.QUOTA_EXCEEDED: ErrorAnswer(429, "rate_limit_error"),
    ErrorCode.DEADLINE: ErrorAnswer(504, "timeout_error"),
    ErrorCode.UNAVAILABLE: ErrorAnswer(503, "unavailable_error", is_transient=True),
    ErrorCode.LOST: ErrorAnswer(503, "unavailable_error"),
    ErrorCode.QUARANTINED: ErrorAnswer(422, "invalid_request_error"),
    ErrorCode.INTERNAL: ErrorAnswer(500, "server_error"),
}

_RETRY_AFTER_S = 1
"""Seconds, for failures whose duration is unknown: loading, draining, a lost worker."""

_MAX_RETRY_AFTER_S = 120
"""Seconds; OpenAI's clients do not retry if the server asks for more."""

_MAX_CHARS = 2000
"""Maximum characters of a message; it may quote what a client sent, which may be megabytes."""
_END_CHARS = 300
"""How many of these come from the end, where the reason often follows the quotation."""

_CAUSE_CHARS = 200
"""Maximum characters of a message in the log line of its request."""

_DETAILS = ("n_prompt_tokens", "n_ctx")
"""Numbers that the body of `CONTEXT_EXCEEDED` has, as in llama-server."""

_SEND_ALL = {"error_code": "thread_not_found"}
"""Anthropic's word for `NotStored`; its client then sends the whole conversation."""


_NO_SCOPE: Scope = {}


class RequestRefused(Exception):
    """Refusal before a handler runs; `kind` is the `type` in the body."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind


FILE_NOT_FOUND = RequestRefused(404, "File Not Found", "not_found_error")
EXPIRED_KEY = RequestRefused(401, "This API key has expired", "authentication_error")
INVALID_KEY = RequestRefused(401, "Invalid API Key", "authentication_error")


def task_error_body(error: TaskError) -> dict[str, Any]:
    """Return the JSON value for a failed task, also used for the event in a stream."""
    answer, message = ANSWERS[error.code], shortened(error.message)
    fields: dict[str, Any]
    if answer.status == 503:  # llama-server sends this one from a middleware
        fields = {"message": message, "type": answer.kind, "code": answer.status}
    else:
        fields = {"code": answer.status, "message": message, "type": answer.kind}
    if error.param is not None:
        fields["param"] = shortened(error.param)
    if error.code is ErrorCode.CONTEXT_EXCEEDED:
        fields |= {key: error.detail[key] for key in _DETAILS if key in error.detail}
    if isinstance(error, NotStored):
        fields["details"] = _SEND_ALL
    return {"error": fields}


def shortened(text: str) -> str:
    """Return a text without its middle if it is too long for an answer."""
    if len(text) <= _MAX_CHARS:
        return text
    return f"{text[: _MAX_CHARS - _END_CHARS]} ... {text[-_END_CHARS:]}"


def retry_headers(error: TaskError) -> Headers:
    """Return the headers that tell the client whether and when to retry."""
    detail = error.detail
    if not ANSWERS[error.code].is_transient:
        later = {"Retry-After": str(detail["retry_after_s"])} if "retry_after_s" in detail else {}
        return {"x-should-retry": "false", **later}
    wait_s = detail.get("retry_after_s", _RETRY_AFTER_S)
    headers = {"Retry-After": str(min(max(wait_s, 1), _MAX_RETRY_AFTER_S))}
    if "queue_position" in detail:
        headers["x-llamapool-queue-position"] = str(detail["queue_position"])
        headers["x-llamapool-queue-wait-s"] = f"{detail.get('queue_wait_ms', 0) / 1000:.1f}"
    return headers


def task_error_response(error: TaskError, scope: Scope = _NO_SCOPE) -> Response:
    """Return the response for a failed task before its first byte."""
    note_cause(error, scope)
    status = ANSWERS[error.code].status
    return json_response(_enveloped(scope, task_error_body(error)), status, retry_headers(error))


def refused_response(error: RequestRefused, scope: Scope = _NO_SCOPE) -> Response:
    """Return the response for a request that reached no handler."""
    note_cause(error, scope)
    fields = {"message": shortened(error.message), "type": error.kind, "code": error.status}
    body = _enveloped(scope, {"error": fields})
    return json_response(body, error.status, {"x-should-retry": "false"})


def note_cause(error: TaskError | RequestRefused, scope: Scope) -> None:
    """Note what the client is told, for the log line of the request.

    Of a wrong field that is its name alone: the message may quote the prompt.
    """
    record: RequestRecord | None = scope.get(REQUEST)
    if record is None:
        return
    cause = error.message
    if isinstance(error, TaskError) and error.code is ErrorCode.INVALID_REQUEST:
        cause = f"invalid {error.param or 'request'}"
    record.cause = cause[:_CAUSE_CHARS]


_ANTHROPIC_PATHS = ("/v1/messages", "/v1/messages/count_tokens")


def _enveloped(scope: Scope, body: dict[str, Any]) -> dict[str, Any]:
    """Add `"type": "error"`, which Anthropic's clients need and others ignore."""
    return {"type": "error", **body} if scope.get("path") in _ANTHROPIC_PATHS else body


def json_response(value: Any, status: int = 200, headers: Headers | None = None) -> Response:
    """Return a response with a JSON body."""
    body = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    return Response(body, status, headers, JSON_TYPE)


def success_response(status: int = 200) -> Response:
    """Return llama-server's answer to an order that was carried out."""
    return json_response({"success": True}, status)


async def on_task_error(request: Request, error: Exception) -> Response:
    """Answer a `TaskError` that a handler raised."""
    assert isinstance(error, TaskError)
    return task_error_response(error, request.scope)


async def on_refused(request: Request, error: Exception) -> Response:
    """Answer a `RequestRefused` that a handler raised."""
    assert isinstance(error, RequestRefused)
    return refused_response(error, request.scope)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer Starlette's exceptions; as in llama-server, a wrong method counts as unknown path."""
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        return refused_response(FILE_NOT_FOUND, request.scope)
    refusal = RequestRefused(error.status_code, str(error.detail))
    return refused_response(refusal, request.scope)


HANDLERS: Mapping[Any, Any] = {
    TaskError: on_task_error,
    RequestRefused: on_refused,
    HTTPException: on_http_exception,
}
"""Handlers that Starlette calls by exception; `gateway/http/access.py` answers all others."""
