"""/v1/audio/transcriptions: a sound and an instruction become a chat, its answer the transcript.

Source: llama-server's `convert_transcriptions_to_chatcmpl` (tools/server/server-chat.cpp).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from gateway.api.chat_request import DialectFields, plan_chat, read_chat_request
from gateway.api.fields.chat.conversation import ChatMedia, ChatMessage
from gateway.api.fields.chat.reasoning import read_effort
from gateway.api.fields.options import read_single_choice, read_text
from gateway.api.fields.structured import AnswerSchema, read_json_schema
from gateway.api.reply import RequestPlan, ResponseFormatter, TaskOutcome
from gateway.api.sse import DONE, event
from gateway.api.unsupported import Refusal, refuse_unsupported
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Delta, Done

_NO_AUDIO = "The current model does not support audio input."
_PROBABILITIES = "log probabilities of a transcript are not supported"
_REFUSED: Mapping[str, Refusal] = {
    **dict.fromkeys(("include", "logprobs", "top_logprobs", "n_probs"), (_PROBABILITIES, bool)),
    "timestamp_granularities": ("times in a transcript are not supported", bool),
    "tools": ("a transcript calls no tools", bool),
}


class _Instruction(NamedTuple):
    system: str
    user: str


_PLAIN = _Instruction("", "Transcribe audio to text")
_LFM2 = _Instruction("Perform ASR.", "")
_LFM2_MARKS = ("<|tool_list_start|>", "<|tool_list_end|>")
"""Both are in the template of an LFM2 model. Source: common/chat.cpp, `is_lfm2_template`."""


def plan(body: Mapping[str, Any], card: ModelCard) -> RequestPlan:
    """Plan a transcription; raises `TaskError`, which names the field that is wrong."""
    if not card.has_audio:
        raise TaskError(ErrorCode.NOT_SUPPORTED, _NO_AUDIO)
    refuse_unsupported(body, own=_REFUSED)
    if (read_text(body, "response_format") or "json") != "json":
        message = "Only 'json' response_format is supported for transcription"
        raise InvalidRequest(message, param="response_format")
    media = ChatMedia(card)
    own = DialectFields(
        messages=_messages(body, card, media),
        media=media,
        schema=AnswerSchema(read_json_schema(body), "json_schema"),
        effort=read_effort(body),
        sampling={"n": read_single_choice(body)},
    )
    return plan_chat(read_chat_request(body, card, own), TranscriptReply())


def _messages(
    body: Mapping[str, Any], card: ModelCard, media: ChatMedia
) -> tuple[ChatMessage, ...]:
    sound = body.get("file")
    if isinstance(sound, list):  # llama-server takes the last, whose transcript passes for all
        raise InvalidRequest("Field 'file': must be one file", param="file")
    if not isinstance(sound, bytes):
        raise InvalidRequest("No input file found for transcription", param="file")
    is_lfm2 = all(mark in card.chat_template for mark in _LFM2_MARKS)
    system, user = _LFM2 if is_lfm2 else _PLAIN
    text = read_text(body, "prompt") or user
    if language := read_text(body, "language"):
        text += f" (language: {language})"
    parts = [media.text(text), media.sound_file(sound, "file")]
    asked = ChatMessage(role="user", content=parts)
    return (ChatMessage(role="system", content=system), asked) if system else (asked,)


class TranscriptReply(ResponseFormatter):
    """Writes a transcript."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def delta(self, index: int, message: Delta) -> bytes:
        """Return the event of added text."""
        if not message.text:
            return b""
        self._texts.append(message.text)
        return event(orjson.dumps({"type": "transcript.text.delta", "delta": message.text}))

    def done(self, index: int, message: Done) -> bytes:
        """Return the event with the whole text."""
        return event(orjson.dumps(_done("".join(self._texts), message)))

    def end(self) -> bytes:
        """Return the mark that ends OpenAI's streams."""
        return DONE

    def result(self, outcomes: Sequence[TaskOutcome]) -> Any:
        """Return the whole text."""
        (outcome,) = outcomes
        return _done(outcome.text, outcome.done)


def _done(text: str, done: Done) -> dict[str, Any]:
    usage = {
        "type": "tokens",
        "input_tokens": done.n_prompt,
        "output_tokens": done.n_predicted,
        "total_tokens": done.n_prompt + done.n_predicted,
        "input_tokens_details": {"cached_tokens": done.n_cached},
    }
    return {"type": "transcript.text.done", "text": text, "usage": usage}
