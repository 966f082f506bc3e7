"""The answers of /v1/completions: stream chunks and the object in one piece."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from gateway.api.openai.reply import OpenAIReply, legacy_log_probs, members, usage
from gateway.api.reply import ResponseOptions, TaskOutcome
from gateway.api.results.answer import FINISH_REASONS
from gateway.api.results.completion_reply import CompletionReply
from gateway.api.results.figures import progress_fields, timings
from protocol.wire.facts import ModelCard, TokenProb
from protocol.wire.messages import Delta, Done, Progress, Started
from protocol.wire.sampling import SamplingParams


class TextReply(OpenAIReply):
    """Writes OpenAI's text completions.

    `echoes` has for each choice the prompt to repeat before it, None without `echo`. It is empty
    for a prompt in tokens, whose text comes with the first delta.
    """

    kind = "text_completion"

    def __init__(
        self,
        card: ModelCard,
        params: Sequence[SamplingParams],
        options: ResponseOptions,
        echoes: Sequence[str | None],
    ) -> None:
        super().__init__(card, params, options)
        self._tail = members(self._fields(self.kind))
        self._id = members({"id": self._identity.id})
        self._native = CompletionReply(card, params)
        self._echoes = echoes
        self._unsaid = list(echoes)
        self._offsets = [0] * len(params)

    def started(self, index: int, message: Started) -> None:
        """Note what only `__verbose` says of it: these chunks name no slot."""
        if self._options.verbose:
            self._native.started(index, message)

    def progress(self, index: int, message: Progress) -> bytes:
        """Return an empty chunk with `prompt_progress`."""
        extra = members(progress_fields(message, self._params[index]))
        extra += self._verbose(self._native.progress, index, message)
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
