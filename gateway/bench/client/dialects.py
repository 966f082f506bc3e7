"""The endpoints that can be measured: path, form of a request, reading of an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class BenchEndpoint(StrEnum):
    """Kind of endpoint."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    NATIVE = "native"
    EMBEDDINGS = "embeddings"


PATHS = {
    BenchEndpoint.CHAT: "/v1/chat/completions",
    BenchEndpoint.COMPLETIONS: "/v1/completions",
    BenchEndpoint.NATIVE: "/completion",
    BenchEndpoint.EMBEDDINGS: "/v1/embeddings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """The server, and what all requests have in common."""

    url: str
    endpoint: BenchEndpoint = BenchEndpoint.CHAT
    model: str = ""
    api_key: str = ""
    stream: bool = True
    ignore_eos: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the body; they take precedence over ours."""
    timeout_s: float = 600.0

    @property
    def streams(self) -> bool:
        """Whether answers come as events."""
        return self.stream and self.endpoint is not BenchEndpoint.EMBEDDINGS


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts that the server reports; -1 where it reports none."""

    n_prompt: int = -1
    n_cached: int = -1
    n_computed: int = -1
    n_output: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPiece:
    """Content of one JSON object of an answer."""

    text: str = ""
    finish: str = ""
    error: str = ""
    counts: Counts | None = None


def body(
    target: BenchTarget, history: Sequence[ChatTurn], inputs: Sequence[str], n_max: int
) -> dict[str, Any]:
    """Return the request for a conversation, whose last message is the question."""
    fields: dict[str, Any] = {"model": target.model} if target.model else {}
    match target.endpoint:
        case BenchEndpoint.EMBEDDINGS:
            return fields | {"input": list(inputs)} | dict(target.fields)
        case BenchEndpoint.CHAT:
            fields["messages"] = [{"role": turn.role, "content": turn.content} for turn in history]
            fields["max_tokens"] = n_max
        case BenchEndpoint.COMPLETIONS:
            fields |= {"prompt": _plain(history), "max_tokens": n_max}
        case BenchEndpoint.NATIVE:
            fields |= {"prompt": _plain(history), "n_predict": n_max}
    if target.stream:
        fields["stream"] = True
        if target.endpoint is not BenchEndpoint.NATIVE:
            fields["stream_options"] = {"include_usage": True}
    if target.ignore_eos:
        fields["ignore_eos"] = True
    return fields | dict(target.fields)


def _plain(history: Sequence[ChatTurn]) -> str:
    """Return a conversation as text, for an endpoint without messages."""
    return "\n".join(turn.content for turn in history)


def read(endpoint: BenchEndpoint, answer: Mapping[str, Any]) -> AnswerPiece:
    """Read one event, or a whole answer."""
    if "error" in answer:
        return AnswerPiece(error=_message(answer["error"]))
    match endpoint:
        case BenchEndpoint.NATIVE:
            return _native(answer)
        case BenchEndpoint.EMBEDDINGS:
            done = "stop" if answer.get("data") else ""
            return AnswerPiece(finish=done, counts=_usage(answer))
    choices = answer.get("choices") or ()
    choice: Mapping[str, Any] = choices[0] if choices else {}
    message = choice if endpoint is BenchEndpoint.COMPLETIONS else _of_message(choice)
    return AnswerPiece(
        text=_text(message), finish=choice.get("finish_reason") or "", counts=_usage(answer)
    )


def _of_message(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    found = choice.get("delta") or choice.get("message") or {}
    return found if isinstance(found, Mapping) else {}


def _text(message: Mapping[str, Any]) -> str:
    """Return what the model wrote: text, reasoning, or arguments of a call."""
    if text := message.get("content") or message.get("text"):
        return str(text)
    if thought := message.get("reasoning_content"):
        return str(thought)
    calls = message.get("tool_calls") or ()
    return "".join(str((call.get("function") or {}).get("arguments") or "") for call in calls)


def _usage(answer: Mapping[str, Any]) -> Counts | None:
    usage, timings = answer.get("usage"), answer.get("timings") or {}
    if not usage and not timings:
        return None
    usage = usage or {}
    details = usage.get("prompt_tokens_details") or {}
    return Counts(
        n_prompt=usage.get("prompt_tokens", -1),
        n_cached=details.get("cached_tokens", timings.get("cache_n", -1)),
        n_computed=timings.get("prompt_n", -1),
        n_output=usage.get("completion_tokens", -1),
    )


def _native(answer: Mapping[str, Any]) -> AnswerPiece:
    if not answer.get("stop"):
        return AnswerPiece(text=answer.get("content", ""))
    timings = answer.get("timings") or {}
    return AnswerPiece(
        text=answer.get("content", ""),
        finish=answer.get("stop_type") or "stop",
        counts=Counts(
            n_prompt=answer.get("tokens_evaluated", -1),
            n_cached=timings.get("cache_n", -1),
            n_computed=timings.get("prompt_n", -1),
            n_output=answer.get("tokens_predicted", -1),
        ),
    )


def _message(error: object) -> str:
    return str(error.get("message", error)) if isinstance(error, Mapping) else str(error)
