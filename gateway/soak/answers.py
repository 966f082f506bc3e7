"""What a client read of an answer, in one form for all APIs, streamed or not.

An answer is a dict from the name of a part (`0.text`, `1.call0.arguments`) to its text.
Identifiers, times and counts of cached tokens are left out: they differ from run to run.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import orjson

_Payload = Mapping[str, Any]


class AnswerReader:
    """Collects the parts of one answer, payload by payload."""

    def __init__(self, path: str) -> None:
        self.parts: dict[str, str] = defaultdict(str)
        self.n_ends: dict[str, int] = defaultdict(int)
        """How often each choice has ended."""
        self.error = ""
        self._read = _READERS[path]

    @property
    def is_whole(self) -> bool:
        """Whether every choice has ended."""
        choices = {name.partition(".")[0] for name in self.parts}
        return bool(self.n_ends) and choices <= {*self.n_ends}

    @property
    def is_doubled(self) -> bool:
        """Whether a choice ended twice."""
        return any(n > 1 for n in self.n_ends.values())

    def take(self, payload: bytes) -> bool:
        """Read one event or body; return whether it had text for the client."""
        found = orjson.loads(payload)
        if error := found.get("error"):
            self.error = str(error.get("message") if isinstance(error, Mapping) else error)
            return False
        n_before = sum(map(len, self.parts.values()))
        self._read(self, found)
        return sum(map(len, self.parts.values())) > n_before

    def end(self, choice: str, finish: object) -> None:
        """Note why a choice ended."""
        self.n_ends[choice] += 1
        self.parts[f"{choice}.finish"] = str(finish)


def _chat(reader: AnswerReader, payload: _Payload) -> None:
    for choice in payload.get("choices") or ():
        name = str(choice["index"])
        message = choice.get("delta") or choice.get("message") or {}
        reader.parts[f"{name}.text"] += message.get("content") or ""
        reader.parts[f"{name}.reasoning"] += message.get("reasoning_content") or ""
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            reader.parts[f"{name}.probs"] += f" {entry['token']}"
        for number, call in enumerate(message.get("tool_calls") or ()):
            part = f"{name}.call{call.get('index', number)}"
            reader.parts[f"{part}.name"] += call["function"].get("name") or ""
            reader.parts[f"{part}.arguments"] += call["function"].get("arguments") or ""
        if choice.get("finish_reason"):
            reader.end(name, choice["finish_reason"])


def _text(reader: AnswerReader, payload: _Payload) -> None:
    for choice in payload.get("choices") or ():
        name = str(choice["index"])
        reader.parts[f"{name}.text"] += choice.get("text") or ""
        if choice.get("finish_reason"):
            reader.end(name, choice["finish_reason"])


def _native(reader: AnswerReader, payload: _Payload) -> None:
    name = str(payload.get("index", 0))
    reader.parts[f"{name}.text"] += payload.get("content") or ""
    reader.parts[f"{name}.tokens"] += "".join(f" {token}" for token in payload.get("tokens") or ())
    for entry in payload.get("completion_probabilities") or ():
        reader.parts[f"{name}.probs"] += f" {entry['id']}"
    if payload.get("stop"):
        reader.parts[f"{name}.n"] = str(payload["tokens_predicted"])
        reader.end(name, payload.get("stop_type"))


def _responses(reader: AnswerReader, payload: _Payload) -> None:
    match payload.get("type"):
        case "response.output_text.delta":
            reader.parts[f"0.text{payload.get('output_index', 0)}"] += payload["delta"]
        case "response.completed":
            whole = payload["response"]
            texts = [part["text"] for item in whole["output"] for part in item.get("content", ())]
            reader.parts["0.whole"] += "".join(texts)
            reader.parts["0.n"] = str(whole["usage"]["output_tokens"])
            reader.end("0", whole["status"])
        case "response.failed":
            reader.error = str(payload["response"].get("error"))


def _messages(reader: AnswerReader, payload: _Payload) -> None:
    match payload.get("type"):
        case "content_block_delta":
            delta = payload["delta"]
            text = delta.get("text") or delta.get("partial_json") or delta.get("thinking") or ""
            reader.parts[f"0.text{payload['index']}"] += text
        case "message_delta":
            reader.parts["0.n"] = str(payload["usage"]["output_tokens"])
            reader.end("0", payload["delta"]["stop_reason"])
        case "message":
            for index, block in enumerate(payload["content"]):
                reader.parts[f"0.text{index}"] += block.get("text") or ""
            reader.parts["0.n"] = str(payload["usage"]["output_tokens"])
            reader.end("0", payload["stop_reason"])


def _embeddings(reader: AnswerReader, payload: _Payload) -> None:
    for entry in payload["data"]:
        digest = hashlib.sha256(orjson.dumps(entry["embedding"])).hexdigest()
        reader.parts[f"{entry['index']}.vector"] = digest
        reader.end(str(entry["index"]), "stop")


_READERS = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _text,
    "/completion": _native,
    "/v1/responses": _responses,
    "/v1/messages": _messages,
    "/v1/embeddings": _embeddings,
}


def is_repeated(got: str, want: str) -> bool:
    """Return whether a text is the wanted one with a piece of it twice in a row."""
    n_more = len(got) - len(want)
    if n_more <= 0:
        return False
    same = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), len(want))
    return any(
        got[:end] == want[:end] and got[end:] == want[end - n_more :]
        for end in range(n_more, same + 1)
    )
