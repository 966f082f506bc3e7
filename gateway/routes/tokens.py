"""POST /tokenize and /detokenize: answered by a worker, without a slot."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.llamacpp.tokens import detokenize_task, tokenize_task, tokenized
from gateway.http.bodies.body import in_thread
from gateway.http.errors import json_response
from gateway.routes.service import Service
from protocol.wire.messages import Detokenized, Tokenized

_LONG = 4096
"""Above this many tokens, the answer is written in a thread: other streams would wait for it."""
_LONG_TEXT = 64 * _LONG
"""Above this many characters, the same for a text."""


class TokenEndpoints:
    """From text to tokens and back."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> Response:
        """Answer with the tokens of a text."""
        scope, receive = request.scope, request.receive
        asked = await self._service.read(scope, receive, "Tokenize")
        task = await asked.in_thread(tokenize_task, asked.body, asked.card.n_vocab)
        result = await self._service.run(task, asked.card, scope, receive, Tokenized)
        is_long = len(result.tokens) > 4 * _LONG
        return await in_thread(
            is_long, lambda: json_response(tokenized(result, with_pieces=task.with_pieces))
        )

    async def detokenize(self, request: Request) -> Response:
        """Answer with the text of tokens."""
        scope, receive = request.scope, request.receive
        asked = await self._service.read(scope, receive, "Detokenize")
        task = await asked.in_thread(detokenize_task, asked.body, asked.card.n_vocab)
        result = await self._service.run(task, asked.card, scope, receive, Detokenized)
        is_long = len(result.content) > _LONG_TEXT
        return await in_thread(is_long, lambda: json_response({"content": result.content}))
