"""POST on Vertex AI's prediction route: several requests of other endpoints in one body.

Google Cloud tells a container by its environment where to listen and under which paths
(`AIP_MODE=PREDICTION`, `AIP_PREDICT_ROUTE`, `AIP_HEALTH_ROUTE`, `AIP_HTTP_PORT`), as llama-server
reads it too. Each instance names its endpoint in `@requestFormat`: a path, or its words in camel
case without `/v1` (`chatCompletions`).
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope

from gateway.http.answer_budget import AnswerReservation
from gateway.http.bodies.body import HELD, LARGE, in_thread, read_json
from gateway.http.direct_write import DIRECT_WRITER
from gateway.http.disconnect import disconnected, guarded, together
from gateway.http.errors import (
    JSON_TYPE,
    RequestRefused,
    json_response,
    refused_response,
    task_error_response,
)
from gateway.http.origin.auth import require_path
from gateway.routes.service import Service
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError, InvalidRequest, TaskError

_MAX_INSTANCES = 128
"""Maximum instances of a body, as in llama-server."""
_FORMAT = "@requestFormat"


def for_vertex(config: GatewayConfig, environ: Mapping[str, str]) -> GatewayConfig:
    """Return the configuration with what Vertex AI sets in `environ`; raises `ConfigError`."""
    if environ.get("AIP_MODE") != "PREDICTION":
        return config
    port = environ.get("AIP_HTTP_PORT") or "8080"
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise ConfigError(f"AIP_HTTP_PORT {port}: must be a port")
    return replace(
        config,
        port=int(port),
        predict_route=_route(environ.get("AIP_PREDICT_ROUTE") or "/predict"),
        health_route=_route(environ.get("AIP_HEALTH_ROUTE") or ""),
    )


def _route(path: str) -> str:
    return path if not path or path.startswith("/") else f"/{path}"


class PredictionEndpoint:
    """Answers `{"instances": [...]}` with `{"predictions": [...]}`, in their order."""

    def __init__(self, service: Service, routes: Sequence[Route]) -> None:
        """Name the routes that instances can ask for; of one name the first route counts."""
        self._service = service
        self._routes: dict[str, Route] = {}
        for route in routes:
            if "{" not in route.path:
                self._routes.setdefault(route.path, route)
                self._routes.setdefault(format_of(route.path), route)

    async def predict(self, request: Request) -> Response:
        """Answer all instances, which run at once."""
        scope, receive = request.scope, request.receive
        body = await read_json(scope, receive, self._service.body_limits)
        instances = body.get("instances")
        if not isinstance(instances, list):
            message = "request body must include an array field named instances"
            raise InvalidRequest(message, param="instances")
        if len(instances) > _MAX_INSTANCES:
            message = f"instances array exceeds maximum size of {_MAX_INSTANCES}"
            raise InvalidRequest(message, param="instances")
        begins = asyncio.Lock()
        with self._service.answers.held(scope["tenant"]) as held:
            answers = together(
                self._predict(instance, scope, held, begins) for instance in instances
            )
            predictions = await guarded(answers, disconnected(receive))
            is_long = held.n_bytes > LARGE
            return await in_thread(is_long, json_response, {"predictions": predictions})

    async def _predict(
        self, instance: Any, scope: Scope, held: AnswerReservation, begins: asyncio.Lock
    ) -> Any:
        """Answer one instance; an error is the answer to this instance alone."""
        async with begins:
            await asyncio.sleep(0)  # a turn of the loop starts one, as of the requests of HTTP/2
        answer = _PredictionAnswer(held)
        try:
            route, body = self._read(instance)
            require_path(scope, route.path)
            is_large = HELD in scope and scope[HELD].is_large
            content = await in_thread(is_large, orjson.dumps, body)
            inner = {
                **scope,
                "path": route.path,
                "raw_path": route.path.encode(),
                DIRECT_WRITER: None,
            }
            inner["method"] = "POST" if "POST" in (route.methods or ()) else "GET"
            await route.app(inner, _receive_of(content), answer.send)
        except TaskError as error:
            return orjson.Fragment(task_error_response(error).body)
        except _AnswerRefused as refused:
            return orjson.Fragment(task_error_response(refused.error).body)
        except RequestRefused as error:
            return orjson.Fragment(refused_response(error).body)
        return answer.value

    def _read(self, instance: Any) -> tuple[Route, dict[str, Any]]:
        if not isinstance(instance, dict):
            raise InvalidRequest("each instance must be a JSON object", param="instances")
        name = instance.get(_FORMAT)
        if not isinstance(name, str):
            raise InvalidRequest(f"each instance must include a string {_FORMAT}", param=_FORMAT)
        route = self._routes.get(name)
        if route is None:
            message = f"no handler registered for {_FORMAT}: {name}"
            raise InvalidRequest(message, param=_FORMAT)
        body = {key: value for key, value in instance.items() if key != _FORMAT}
        if "stream" in body:  # an answer within an answer cannot be a stream
            body["stream"] = False
        return route, body


class _AnswerRefused(Exception):
    """No `TaskError`: the inner endpoint, whose answer has started, would try to answer with it."""

    def __init__(self, error: TaskError) -> None:
        self.error = error


class _PredictionAnswer:
    """One inner answer. JSON is passed on as it is: parsing 100 MB of it takes a second."""

    def __init__(self, held: AnswerReservation) -> None:
        self._held = held
        self._is_json = False
        self._body = b""

    @property
    def value(self) -> Any:
        if self._is_json and self._body:
            return orjson.Fragment(self._body)
        return self._body.decode(errors="replace") or None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = next(
                (value for name, value in message["headers"] if name == b"content-type"), b""
            )
            if kind.startswith(b"text/event-stream"):
                text = "predict route does not support streaming responses"
                raise _AnswerRefused(InvalidRequest(text, param=_FORMAT))
            self._is_json = kind == JSON_TYPE.encode()
        piece = message.get("body", b"")
        try:
            self._held.take(len(piece))
        except TaskError as error:
            raise _AnswerRefused(error) from error
        self._body += piece


def format_of(path: str) -> str:
    """Return the name of a path: `/v1/chat/completions` is `chatCompletions`."""
    words = re.split("[/_-]", path.removeprefix("/v1").removeprefix("/"))
    return words[0] + "".join(word[:1].upper() + word[1:] for word in words[1:])


def _receive_of(body: bytes) -> Receive:
    """Return a `receive` with this body that then never returns: the outer one sees disconnects."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive
