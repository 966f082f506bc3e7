"""Results of tools inside the message that called, where a template knows no role `tool`.

Gemma 4's older templates want calls, results and the answer after them in one message. As in
llama-server, words before the calls are left out.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def join_results(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put each result, and the answer after the results, into the message that called."""
    joined: list[dict[str, Any]] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message.get("role") != "assistant" or not message.get("tool_calls"):
            joined.append(dict(message))
            continue
        results = []
        while at < len(messages) and messages[at].get("role") == "tool":
            results.append(messages[at])
            at += 1
        whole = _called(message, results)
        if at < len(messages) and _is_answer(messages[at]):
            whole["content"] = messages[at]["content"]
            at += 1
        joined.append(whole)
    return joined


def _called(message: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    whole = {
        key: message[key] for key in ("role", "tool_calls", "reasoning_content") if key in message
    }
    if results:
        names = [call["function"]["name"] for call in message["tool_calls"]]
        whole["tool_responses"] = [
            {
                "name": names[i] if i < len(names) else result.get("tool_call_id") or "",
                "response": _read(result.get("content")),
            }
            for i, result in enumerate(results)
        ]
    return whole


def _is_answer(message: Mapping[str, Any]) -> bool:
    is_call = bool(message.get("tool_calls"))
    return message.get("role") == "assistant" and not is_call and bool(message.get("content"))


def _read(content: Any) -> Any:
    """Read a result as JSON, if it is."""
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content
