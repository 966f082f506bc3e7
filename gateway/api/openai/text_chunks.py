"""The answers of /v1/completions: stream chunks and the object in one piece."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import orjson

from gateway.api.openai.chunks import usage_chunk
from gateway.api.openai.usage import legacy_log_probs, usage, whole_answer
from gateway.api.reply import ResponseOptions, TaskOutcome
from gateway.api.results.answer import FINISH_REASONS, Identity, identity
from gateway.api.results.completion import completion
from gateway.api.results.completion_reply import CompletionReply
from gateway.api.results.figures import progress_fields, timings, total
from gateway.api.sse import DONE
from protocol.wire.facts import ModelCard, TokenProb
from protocol.wire.messages import Delta, Done, Progress, Started
from protocol.wire.sampling import SamplingParams


class TextReply:
    """Writes OpenAI's text completions; see `gateway.api.reply.ResponseFormatter`.

    `echoes` has for each choice the prompt to repeat before it, None without `echo`. It is empty
    for a prompt in tokens, whose text comes with the first delta.
    """

    is_read_by_chunk: ClassVar[bool] = False

    def __init__(
        self,
        card: ModelCard,
        params: Sequence[SamplingParams],
        options: ResponseOptions,
        echoes: Sequence[str | None],
    ) -> None:
        self._card = card
        self._params = params
        self._options = options
        self._native = CompletionReply(card, params)
        self._echoes = echoes
        self._unsaid = list(echoes)
        self._identity = identity(card)
        self._tail, self._id = _tails(self._identity)
        self._offsets = [0] * len(params)
        self._dones: dict[int, Done] = {}

    def started(self, index: int, message: Started) -> None:
        """Note what only `__verbose` says of it: these chunks name no slot."""
        if self._options.verbose:
            self._native.started(index, message)

    def progress(self, index: int, message: Progress) -> bytes:
        """Return an empty chunk with `prompt_progress`."""
        told = orjson.dumps(progress_fields(message, self._params[index]))
        extra = b"," + told[1:-1] + self._verbose(self._native.progress, index, message)
        return self._chunk(index, b'""', extra=extra)

    def delta(self, index: int, message: Delta) -> bytes:
        """Return the added text; a delta with neither text nor probabilities has no frame."""
        if not message.text and not message.probs and not message.prompt:
            return b""
        said = self._say_echo(index, message.prompt) + message.text
        extra = b""
        if message.timings is not None:
            extra = b',"timings":' + orjson.dumps(timings(message.timings))
        extra += self._verbose(self._native.delta, index, message)
        probs = b"null"
        if self._options.n_top >= 0 and (message.probs or message.prompt):
            probs = self._log_probs(index, message.probs, message.prompt)
        return self._chunk(index, orjson.dumps(said), probs, extra)

    def _verbose(self, write: Callable[[int, Any], bytes], index: int, message: Any) -> bytes:
        """Return `__verbose` with llama-server's own chunk for a message, if it is wanted."""
        if not self._options.verbose:
            return b""
        return b',"__verbose":' + write(index, message).removeprefix(b"data: ").rstrip()

    def _say_echo(self, index: int, prompt: tuple[TokenProb, ...] = ()) -> str:
        echo, self._unsaid[index] = self._unsaid[index], None
        return _echo(echo, prompt)

    def _log_probs(
        self, index: int, probs: tuple[TokenProb, ...], prompt: tuple[TokenProb, ...]
    ) -> bytes:
        offset = self._offsets[index]
        fields = legacy_log_probs(
            probs, self._params[index], self._options, offset=offset, prompt=prompt
        )
        self._offsets[index] = offset + sum(map(len, fields["tokens"]))
        return orjson.dumps(fields)

    def _chunk(
        self, index: int, text: bytes, log_probs: bytes = b"null", extra: bytes = b""
    ) -> bytes:
        return (
            b'data: {"choices":[{"text":%b,"index":%d,"logprobs":%b,"finish_reason":null}]%b%b%b}'
            b"\n\n" % (text, index, log_probs, self._tail, self._id, extra)
        )

    def done(self, index: int, message: Done) -> bytes:
        """Return the frame with the finish reason, and usage unless a chunk of its own has it."""
        self._dones[index] = message
        reason = FINISH_REASONS[message.finish].encode()
        counted, extra = b"", b""
        if not self._options.include_usage:
            counted = b',"usage":' + orjson.dumps(usage([message], 1))
            extra = b',"timings":' + orjson.dumps(timings(message.timings))
        extra += self._verbose(self._native.done, index, message)
        text = orjson.dumps(self._say_echo(index))
        head = b'data: {"choices":[{"text":%b,"index":%d,"logprobs":null,' % (text, index)
        reason = b'"finish_reason":"%b"}]' % reason
        return b"".join((head, reason, self._tail, counted, self._id, extra, b"}\n\n"))

    def end(self) -> bytes:
        """Return the usage, where the request asks for it, and the end mark."""
        if not self._options.include_usage:
            return DONE
        return usage_chunk(self._tail + self._id, self._dones, self._params[0].n) + DONE

    def result(self, outcomes: Sequence[TaskOutcome]) -> Any:
        """Return the `text_completion` object."""
        dones = [outcome.done for outcome in outcomes]
        choices = [self._choice(i, outcome) for i, outcome in enumerate(outcomes)]
        result = whole_answer(self._identity, "text_completion", choices, dones, self._params[0].n)
        if self._options.verbose:
            result["__verbose"] = completion(self._card, self._params[0], 0, outcomes[0])
        return result | {"timings": timings(total(dones))}

    def _choice(self, index: int, outcome: TaskOutcome) -> dict[str, Any]:
        params = self._params[index]
        probs = None
        if self._options.n_top >= 0:
            probs = legacy_log_probs(
                outcome.probs, params, self._options, offset=0, prompt=outcome.prompt
            )
        return {
            "text": _echo(self._echoes[index], outcome.prompt) + outcome.text,
            "index": index,
            "logprobs": probs,
            "finish_reason": FINISH_REASONS[outcome.done.finish],
        }


def _echo(text: str | None, prompt: Sequence[TokenProb]) -> str:
    """Return the echo of a choice: the client's own text, or the text of its tokens."""
    if text is None:
        return ""
    return text or b"".join([token.piece for token in prompt]).decode(errors="replace")


def _tails(who: Identity) -> tuple[bytes, bytes]:
    fields = {
        "created": who.created,
        "model": who.model,
        "system_fingerprint": who.fingerprint,
        "object": "text_completion",
    }
    return b"," + orjson.dumps(fields)[1:-1], b',"id":' + orjson.dumps(who.id)
