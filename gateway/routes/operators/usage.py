"""GET /admin/usage and GET /v1/usage: what was used, by key, model and day."""

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.errors import RequestRefused, json_response
from gateway.siblings.siblings import Siblings
from gateway.usage.database import GROUPS, MAX_ROWS, ask, unwritten
from gateway.usage.entry import Tokens, read_entry
from gateway.usage.recorder import UsageRecorder
from protocol.errors import ErrorCode, InvalidRequest, TaskError

_QUESTION = "usage"
_FLUSH_S = 1.5
"""How long to wait for what is being written; less than siblings have to answer."""
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_MAX_NAME = 512
"""Maximum characters of the name of a key or a model."""
_AT_ONCE = 2
"""Questions that read the database at once: each holds a thread that others need too."""
_MAX_OPEN = 64
"""Questions that wait or run; further ones are refused."""
_TOO_MANY = "Too many usage queries run at once: try again later"
_NO_KEYS = "This server has no keys, so no key has usage. Ask /admin/usage over admin.sock"


class UsageQuestion(NamedTuple):
    """What a client asks for."""

    by: tuple[str, ...]
    where: dict[str, str]
    first: str
    last: str
    """Days, both included; empty is no bound."""


class UsageEndpoints:
    """Answers for all gateways of this host."""

    def __init__(self, recorder: UsageRecorder | None, siblings: Siblings) -> None:
        self._recorder = recorder
        self._siblings = siblings
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._n_open = 0
        siblings.respond(_QUESTION, self._flush_for_sibling)

    async def admin(self, request: Request) -> Response:
        """Return the usage of all keys."""
        return await self._answer(read_question(request.query_params, GROUPS, ("key", "model")))

    async def own(self, request: Request) -> Response:
        """Return the usage of the client's own key."""
        if not request.scope["key"]:
            raise RequestRefused(403, _NO_KEYS, "permission_error")
        question = read_question(request.query_params, ("model", "day"), ("model",))
        question.where["key"] = request.scope["key"]
        return await self._answer(question)

    async def _answer(self, question: UsageQuestion) -> Response:
        recorder = self._recorder
        if recorder is None:
            message = "This server keeps no usage. Start it with `--usage-dir`"
            raise TaskError(ErrorCode.NOT_SUPPORTED, message)
        if self._n_open >= _MAX_OPEN:
            raise TaskError(ErrorCode.OVERLOADED, _TOO_MANY)
        self._n_open += 1
        try:
            async with self._turns:
                shown = await self._collect(recorder, question)
        except sqlite3.Error as error:
            raise TaskError(ErrorCode.UNAVAILABLE, f"The usage cannot be read: {error}") from error
        finally:
            self._n_open -= 1
        return json_response(shown)

    async def _collect(self, recorder: UsageRecorder, question: UsageQuestion) -> dict[str, Any]:
        _, answers = await asyncio.gather(_flushed(recorder), self._siblings.ask(_QUESTION))
        lines = [
            line for answer in answers.values() if answer for line in answer.get("unwritten", ())
        ]
        return await asyncio.to_thread(_sum_up, recorder, question, lines)

    async def _flush_for_sibling(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        """Bring what this gateway has counted to the disk; return what could not be."""
        if self._recorder is None:
            return {}
        if await _flushed(self._recorder) and not self._recorder.is_failing:
            return {"unwritten": []}  # what came since may be in the database before it is read
        return {"unwritten": [record.line().decode() for record in self._recorder.unwritten()]}


async def _flushed(recorder: UsageRecorder) -> bool:
    """Wait for what was counted so far to be written; false if that takes too long."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.wrap_future(recorder.flush()), _FLUSH_S)
        return True
    return False


def read_question(
    params: Mapping[str, str], groups: Sequence[str], default: tuple[str, ...]
) -> UsageQuestion:
    """Read the parameters of a query; raises `InvalidRequest` that names the one at fault."""
    names = [name for name in groups if name != "day"]
    by = tuple(params["by"].split(",")) if params.get("by") else default
    if len(set(by)) < len(by) or set(by) - set(groups):
        message = f"Parameter 'by': must name some of {', '.join(groups)}, each once"
        raise InvalidRequest(message, param="by")
    where = {name: params[name] for name in names if name in params}
    for name, value in where.items():
        if len(value) > _MAX_NAME:
            message = f"Parameter '{name}': must be at most {_MAX_NAME} characters long"
            raise InvalidRequest(message, param=name)
    return UsageQuestion(by, where, _day(params, "from"), _day(params, "to"))


def _day(params: Mapping[str, str], name: str) -> str:
    text = params.get(name, "")
    if text:
        try:
            if not (text.isascii() and _DAY.fullmatch(text)):
                raise ValueError(text)
            date.fromisoformat(text)
        except ValueError:
            message = f"Parameter '{name}': must be a day of UTC such as 2026-11-22"
            raise InvalidRequest(message, param=name) from None
    return text


def _sum_up(
    recorder: UsageRecorder, question: UsageQuestion, lines: Sequence[str]
) -> dict[str, Any]:
    """Ask the database, and add what is not in it; on a thread."""
    by, where, first, last = question
    pending = [read_entry(line.encode()) for line in lines]
    with recorder.at_rest():
        pending += recorder.unwritten()
        found = ask(recorder.folder, by, where, first, last)
    for group, tokens in unwritten(pending, by, where, first, last).items():
        found[group] = found.get(group, Tokens()).plus(tokens)
    if len(found) > MAX_ROWS:
        message = f"More than {MAX_ROWS} rows: set from and to, or fewer groups in by"
        raise InvalidRequest(message, param="by")
    total = Tokens()
    for tokens in found.values():
        total = total.plus(tokens)
    return {
        "object": "usage",
        "by": list(by),
        "from": first or None,
        "to": last or None,
        "rows": [dict(zip(by, group, strict=True)) | view(found[group]) for group in sorted(found)],
        "total": view(total),
        "unwritten_requests": sum(record.tokens.requests for record in pending),
    }


def view(tokens: Tokens) -> dict[str, Any]:
    """Return counts as JSON, in OpenAI's words."""
    return {
        "requests": tokens.requests,
        "prompt_tokens": tokens.prompt,
        "cached_tokens": tokens.cached,
        "completion_tokens": tokens.completion,
        "computed": {
            "prompt_tokens": tokens.read,
            "cached_tokens": tokens.reused,
            "completion_tokens": tokens.generated,
        },
    }
