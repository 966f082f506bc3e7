"""Sending the cases to a server and writing down what came back."""

import base64
import json
import struct
from typing import Any

import httpx

from tests.parity.cases import Case


def ask(client: httpx.Client, case: Case) -> dict[str, Any]:
    """Send one case; return status, content type and the decoded body."""
    content = case.raw or (None if case.body is None else json.dumps(case.body))
    response = client.request(case.method, case.path, content=content, headers=case.headers)
    kind = response.headers.get("content-type", "").partition(";")[0]
    return {"status": response.status_code, "type": kind, "body": _body(kind, response.text)}


def _body(kind: str, text: str) -> Any:
    if kind == "text/event-stream":
        return [_event(line) for line in text.splitlines() if line.startswith("data: ")]
    if kind == "application/json":
        return _shortened(json.loads(text))
    return text


def _shortened(value: Any) -> Any:
    """Keep the length and the beginning of vectors, which nobody wants to read whole."""
    if isinstance(value, list):
        return [_shortened(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _vector(one) if key == "embedding" else _shortened(one) for key, one in value.items()
    }


def _vector(value: Any) -> Any:
    if isinstance(value, str):
        data = base64.b64decode(value, validate=True)
        return {"base64": _vector([one for (one,) in struct.iter_unpack("<f", data)])}
    if value and isinstance(value[0], list):
        return [_vector(one) for one in value]
    return {"n": len(value), "begins": value[:3]}


def _event(line: str) -> Any:
    data = line.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)


def generated(answer: dict[str, Any]) -> str:
    """Gather the generated text of an answer, in whatever shape it came."""
    body = answer["body"]
    if isinstance(body, list):
        return (
            "|".join(_text(one) for one in body) if _is_array(body) else "".join(map(_text, body))
        )
    return _text(body)


def _is_array(body: list[Any]) -> bool:
    """Tell an array of results from the events of a stream."""
    return all(isinstance(one, dict) and one.get("stop") is True for one in body)


def _text(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    if "content" in value:
        content = value["content"]
        return _parts(content) if isinstance(content, list) else str(content)
    if "output" in value:
        return "|".join(_parts(item["content"]) for item in value["output"])
    if "delta" in value:
        delta = value["delta"]
        return delta if isinstance(delta, str) else str(delta.get("text", ""))
    return "|".join(_choice(choice) for choice in value.get("choices", []))


def _parts(parts: list[dict[str, Any]]) -> str:
    return "|".join(part["text"] for part in parts)


def _choice(choice: dict[str, Any]) -> str:
    for key in ("message", "delta"):
        if key in choice:
            return choice[key].get("content") or ""
    return choice.get("text") or ""
