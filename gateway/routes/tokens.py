"""POST /tokenize and /detokenize: answered by a worker, without a slot."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.llamacpp.tokens import detokenize_task, tokenize_task, tokenized
from gateway.http.body import in_thread
from gateway.http.disconnect import answered
from gateway.http.errors import json_response
from gateway.routes.service import Service
from protocol.wire.messages import Detokenized, Tokenized

_LONG = 4096
"""Tokens that take longer to write as JSON than other streams should wait."""


class Tokenization:
    """POST /tokenize."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        asked = await self._service.read(scope, receive, "Tokenize")
        task = await asked.in_thread(tokenize_task, asked.body, asked.card.n_vocab)
        stream = self._service.pool.submit(task, model=asked.card.name, tenant=scope["tenant"])
        result = await answered(stream, receive, Tokenized)
        is_long = len(result.tokens) > _LONG
        response = await in_thread(is_long, _respond, result, task.with_pieces)
        await response(scope, receive, send)


def _respond(result: Tokenized, with_pieces: bool) -> Response:
    return json_response(tokenized(result, with_pieces=with_pieces))


class Detokenization:
    """POST /detokenize."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        asked = await self._service.read(scope, receive, "Detokenize")
        task = await asked.in_thread(detokenize_task, asked.body, asked.card.n_vocab)
        stream = self._service.pool.submit(task, model=asked.card.name, tenant=scope["tenant"])
        result = await answered(stream, receive, Detokenized)
        await json_response({"content": result.content})(scope, receive, send)
