"""Streams whose pieces are joined: how many tokens come at once is a matter of time."""

from typing import Any

_GROWING = ("content", "tokens", "completion_probabilities", "text", "logprobs")


def joined(body: Any) -> Any:
    """Put one object in the place of the pieces of text that follow each other."""
    if not isinstance(body, list):
        return body
    found: list[Any] = []
    was_piece = False
    for event in body:
        piece = _piece(event)
        if piece is not None and was_piece:
            sums = ((name, _sum(found[-1].get(name), piece.get(name))) for name in _GROWING)
            found[-1] = {name: value for name, value in sums if value}
        else:
            found.append(event if piece is None else piece)
        was_piece = piece is not None
    return found


def _sum(one: Any, other: Any) -> Any:
    return one + other if one and other else one or other


def _piece(event: Any) -> dict[str, Any] | None:
    """Return what grows with a piece of text; None of any other event."""
    if not isinstance(event, dict) or "prompt_progress" in event or "is_processing" in event:
        return None
    if event.get("stop") is False:
        # llama-server lists a token 0 in pieces that have none.
        told = {name: event.get(name) for name in _GROWING}
        return {name: value for name, value in told.items() if value and value != [0]}
    if event.get("type") in ("content_block_delta", "response.output_text.delta"):
        delta = event["delta"]
        return {"text": delta if isinstance(delta, str) else delta.get("text")}
    for choice in event.get("choices", ()):
        delta = choice.get("delta", choice)
        is_text = choice["finish_reason"] is None and {*delta} <= {"content", *choice}
        if is_text:
            text = delta.get("content") or delta.get("text")
            logprobs = (choice.get("logprobs") or {}).get("content")
            return {"text": text, "logprobs": logprobs} if logprobs else {"text": text}
    return None
