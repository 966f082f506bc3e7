"""The objects of /v1/responses: the response, its items, its usage."""

import uuid
from collections.abc import Sequence
from typing import Any

from protocol.wire.messages import Done, Finish, ToolCallDelta


def draw_id(prefix: str) -> str:
    """Return a new id of a response or of an item; the model's calls have their own."""
    return prefix + uuid.uuid4().hex


def reasoning_item(id_: str, text: str | None, status: str) -> dict[str, Any]:
    """Return an item of reasoning; without a text, it has only started."""
    return {
        "id": id_,
        "summary": [],
        "type": "reasoning",
        "content": [] if text is None else [reasoning_part(text)],
        "encrypted_content": "",
        "status": status,
    }


def reasoning_part(text: str) -> dict[str, Any]:
    """Return the one part of reasoning."""
    return {"text": text, "type": "reasoning_text"}


def message_item(id_: str, content: Sequence[dict[str, Any]], status: str) -> dict[str, Any]:
    """Return an item of text."""
    return {
        "type": "message",
        "status": status,
        "id": id_,
        "content": list(content),
        "role": "assistant",
    }


def text_part(text: str, log_probs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the one part of a message."""
    return {
        "type": "output_text",
        "annotations": [],
        "logprobs": list(log_probs),
        "text": text,
    }


def call_item(call: ToolCallDelta, status: str) -> dict[str, Any]:
    """Return the item of a function call."""
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "status": status,
        "arguments": call.arguments,
        "call_id": f"call_{call.id}",
        "name": call.name,
    }


def usage(done: Done, n_reasoning: int) -> dict[str, Any]:
    """Count tokens; the cached ones are part of the input."""
    return {
        "input_tokens": done.n_prompt,
        "output_tokens": done.n_predicted,
        "total_tokens": done.n_prompt + done.n_predicted,
        "input_tokens_details": {
            "cached_tokens": done.n_cached,
            "cache_write_tokens": done.n_prompt - done.n_cached,
        },
        "output_tokens_details": {"reasoning_tokens": n_reasoning},
    }


def incomplete_details(done: Done) -> dict[str, Any] | None:
    """Return why the text is incomplete, or None.

    The status stays `completed`, as in llama-server: OpenAI's client waits for no other.
    """
    is_whole = done.finish in (Finish.EOS, Finish.WORD)
    return None if is_whole else {"reason": "max_output_tokens"}
