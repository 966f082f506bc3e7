"""A prompt as hashes of its blocks: prompts with equal hashes begin with the same text.

The hashes are the same in every process and on every host, so that gateways and workers speak of
the same blocks: the first 8 bytes of BLAKE2b over the prompt so far. A client can make two prompts
with one hash (2^32 tries), but not a prompt with the hash of a given one (2^64). Even a collision
shows nobody another's text: the gateway expects cached tokens that the worker, which compares
tokens, does not find.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from protocol.wire.cached import BLOCK_BYTES, MAX_CHAIN_BLOCKS
from protocol.wire.messages import Chat, Generate, Infill, content_text

_BLOCK_TEXT = 256
"""Bytes of text in a block."""
_BLOCK_TOKENS = 64
"""Tokens in a block of a prompt that is given in tokens."""
_TOKEN = 4
"""Bytes of a token."""
_MEDIA_SAMPLE = 4096
"""Bytes of an image or a sound that are hashed, beside its size: a guess is enough here."""
_PERSON = b"llamapool blocks"
"""Keeps these hashes apart from others; raise nothing for it but `WIRE_VERSION`."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt by its blocks."""

    chain: bytes = b""
    """Hash of each whole block and all before it, `BLOCK_BYTES` each."""
    size: float = 0.0
    """Length of the prompt in blocks, the last being a part of one."""

    @property
    def n_blocks(self) -> int:
        """Whole blocks that were hashed."""
        return len(self.chain) // BLOCK_BYTES


def fingerprint(task: Generate, model: str) -> Prefix:
    """Hash a prompt as it will be cached: for this model, namespace and set of adapters."""
    if not task.params.cache_prompt:
        return Prefix()
    root = orjson.dumps((model, task.salt, task.params.lora))
    prompt = task.prompt
    if isinstance(prompt, tuple) and not any(
        isinstance(part, str) for part in prompt[:_BLOCK_TOKENS]
    ):
        return _hashed(_token_bytes(prompt), _BLOCK_TOKENS * _TOKEN, b"tokens" + root)
    text = _text(task)
    head = text[: _BLOCK_TEXT * MAX_CHAIN_BLOCKS]
    found = _hashed(head.encode("utf-8", "surrogatepass"), _BLOCK_TEXT, b"text" + root)
    return replace(found, size=found.size + (len(text) - len(head)) / _BLOCK_TEXT)


def _hashed(content: bytes, length: int, root: bytes) -> Prefix:
    """Hash blocks of `length` bytes, each together with all before it."""
    running = hashlib.blake2b(digest_size=BLOCK_BYTES, person=_PERSON)
    running.update(len(root).to_bytes(4, "big") + root)
    view, names = memoryview(content), []
    for end in range(length, min(len(content), length * MAX_CHAIN_BLOCKS) + 1, length):
        running.update(view[end - length : end])
        names.append(running.digest())
    return Prefix(b"".join(names), len(content) / length)


def _token_bytes(tokens: Sequence[int | str]) -> bytes:
    """Write tokens as bytes; what is no token, behind many that are, counts by its hash."""
    words: array[int] = array("i")
    try:
        words.extend(tokens)  # type: ignore[arg-type]
    except (OverflowError, TypeError):
        words = array("i", [_word(token) for token in tokens])
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _word(item: int | str) -> int:
    if isinstance(item, str):
        return int.from_bytes(_digest(item.encode("utf-8", "surrogatepass"))[:3], "big")
    return item % 0x80000000


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=BLOCK_BYTES, person=_PERSON).digest()


def _text(task: Generate) -> str:
    """Join what the prompt is made of, in the order in which models read it."""
    if task.chat is not None:
        text = _chat_text(task.chat)
    elif task.infill is not None:
        text = _infill_text(task.infill)
    else:
        prompt = task.prompt or ""
        text = prompt if isinstance(prompt, str) else "".join(map(_as_text, prompt))
    for piece in task.media:
        text += f"\0{_digest(piece[:_MEDIA_SAMPLE]).hex()}:{len(piece)}"
    return text


def _chat_text(chat: Chat) -> str:
    """Join a conversation. Other fields change its end or are rare, so they are left out."""
    parts = [orjson.dumps(tool).decode() for tool in chat.tools]
    for message in chat.messages:
        parts.append(f"\0{message.get('role')}\0")
        parts.append(content_text(message.get("content")))
        parts += [_named(key, message[key]) for key in _CONTENT_FIELDS if message.get(key)]
    return "".join(parts)


_CONTENT_FIELDS = ("reasoning_content", "tool_calls")
"""Fields of a message beside `content` that templates write into the prompt."""


def _named(key: str, value: object) -> str:
    return f"\0{key}\0{orjson.dumps(value).decode()}"


def _infill_text(infill: Infill) -> str:
    files = "".join(f"\0{name}\0{text}" for name, text in infill.extra)
    return f"{files}\0{infill.prefix}\0{infill.suffix}"


def _as_text(item: int | str) -> str:
    return item if isinstance(item, str) else chr(item % 0x110000)
