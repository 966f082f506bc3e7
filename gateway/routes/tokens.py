"""POST /tokenize and /detokenize: answered by a worker, without a slot."""

from starlette.types import Receive, Scope, Send

from gateway.body import read_json
from gateway.errors import json_response
from gateway.llamacpp.tokens import detokenize_task, tokenize_task, tokenized
from gateway.race import answered
from gateway.service import Service
from protocol.messages import Detokenized, Tokenized


class Tokenization:
    """POST /tokenize."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = await read_json(scope, receive, self._service.body_limits)
        card = await self._service.card(body.get("model"), scope, receive)
        task = tokenize_task(body, card.n_vocab)
        stream = self._service.pool.submit(task, model=card.name, tenant=scope["tenant"])
        result = await answered(stream, receive, Tokenized)
        answer = tokenized(result, with_pieces=task.with_pieces)
        await json_response(answer)(scope, receive, send)


class Detokenization:
    """POST /detokenize."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = await read_json(scope, receive, self._service.body_limits)
        card = await self._service.card(body.get("model"), scope, receive)
        task = detokenize_task(body, card.n_vocab)
        stream = self._service.pool.submit(task, model=card.name, tenant=scope["tenant"])
        result = await answered(stream, receive, Detokenized)
        await json_response({"content": result.content})(scope, receive, send)
