"""A prompt as hashes of its blocks: prompts with equal hashes begin with the same text.

Python's own `hash` is seeded anew in each process: nobody can prepare collisions, and the hashes
mean nothing outside of it. 100 kB of text take 0.1 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from protocol.wire.messages import Chat, Generate, Infill

_BLOCK_CHARS = 256
_BLOCK_TOKENS = 64
_MAX_BLOCKS = 4096
"""A megabyte of text; the rest of a prompt is not hashed."""
_MEDIA_SAMPLE = 4096


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt by its blocks."""

    blocks: tuple[int, ...] = ()
    """Hash of each whole block and all before it."""
    size: float = 0.0
    """Length of the prompt in blocks, the last being a part of one."""


def fingerprint(task: Generate, model: str) -> Prefix:
    """Hash a prompt as it will be cached: for this model, namespace and set of adapters."""
    if not task.params.cache_prompt:
        return Prefix()
    seed = hash((model, task.salt, task.params.lora))
    prompt = task.prompt
    if isinstance(prompt, tuple) and not any(map(_is_text, prompt[:_BLOCK_TOKENS])):
        return _hashed(prompt, _BLOCK_TOKENS, seed)
    return _hashed(_text(task), _BLOCK_CHARS, seed)


def _hashed(content: Sequence[object], length: int, seed: int) -> Prefix:
    last, blocks = seed, []
    for end in range(length, min(len(content), length * _MAX_BLOCKS) + 1, length):
        last = hash((last, content[end - length : end]))
        blocks.append(last)
    return Prefix(tuple(blocks), len(content) / length)


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
        text += f"\0{hash(piece[:_MEDIA_SAMPLE])}:{len(piece)}"
    return text


def _chat_text(chat: Chat) -> str:
    """Join a conversation. Other fields change its end or are rare, so they are left out."""
    parts = [orjson.dumps(tool).decode() for tool in chat.tools]
    for message in chat.messages:
        content = message.get("content")
        parts.append(f"\0{message.get('role')}\0")
        parts.append(content if isinstance(content, str) else orjson.dumps(content).decode())
        parts += [_named(key, message[key]) for key in _CONTENT_FIELDS if message.get(key)]
    return "".join(parts)


_CONTENT_FIELDS = ("reasoning_content", "tool_calls")
"""Fields of a message beside `content` that templates write into the prompt."""


def _named(key: str, value: object) -> str:
    return f"\0{key}\0{orjson.dumps(value).decode()}"


def _infill_text(infill: Infill) -> str:
    files = "".join(f"\0{name}\0{text}" for name, text in infill.extra)
    return f"{files}\0{infill.prefix}\0{infill.suffix}"


def _is_text(item: int | str) -> bool:
    return isinstance(item, str)


def _as_text(item: int | str) -> str:
    return item if isinstance(item, str) else chr(item % 0x110000)
