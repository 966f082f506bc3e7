"""Checks the numbers that workers send: values of the right type that cannot be true. Pure.

The wire checks types. A worker whose host was taken over may send a count of -5 or of 2**63, which
would reach the tenants' charges, the usage log and the map of slots. So its reports are looked at
before they count; the pieces of an answer, which come with every token, are checked where they are
used.
"""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from protocol.wire.facts import ModelCard, Stats, Timings, Usage
from protocol.wire.messages import (
    Detokenize,
    Detokenized,
    Done,
    Failed,
    Generate,
    Heartbeat,
    Inspect,
    Inspected,
    Message,
    Progress,
    PromptRead,
    Ready,
    Started,
    TaskMessage,
    Terminal,
    Tokenize,
    Tokenized,
)
from protocol.wire.sharing import MAX_VERSIONS, Recall, SettingsReport
from protocol.wire.side_tasks import (
    Embed,
    Embedded,
    EndReasoning,
    LoraListed,
    ReasoningEnded,
    Render,
    Rendered,
    Rerank,
    Reranked,
    SetLora,
    SetSystemPrompt,
    SlotActed,
    SlotAction,
    SystemPromptSet,
)

MAX_TOKENS = 1 << 31
"""No task has as many."""
MAX_UNSEEN = 1 << 16
"""Tokens that a worker may have generated and not sent: its answer was given up meanwhile."""
MAX_ADDED = 1 << 17
"""Tokens that a template, a system prompt, tools or an image may add to what a client sent."""
_MAX_REREADINGS = 64
"""Times that a worker may read a prompt again because its cells were needed for others."""
_BYTES_PER_CHARACTER = 4
"""Maximum bytes of a character in UTF-8; a token has at least one."""
_MAX_COUNT = 1 << 53
"""Counters of a worker's whole life stay below; so do all that a float can count."""
MAX_SLOTS = 1 << 12
_MAX_CREDITS = 1 << 20
"""Slots and credits of one worker stay below."""
LONGEST_NAME = 255
"""Characters of the name of a worker or a model: names are in logs and metrics."""
_MAX_NAMES = 256
"""Aliases, or tags, of one model."""
_CARD_COUNTS = ("n_ctx", "n_ctx_total", "n_ctx_train", "n_vocab", "longest_piece", "n_embd")
_STATS, _TIMINGS, _USAGE = (
    tuple(field.name for field in fields(kind)) for kind in (Stats, Timings, Usage)
)
_CARD_SIZES = ("n_params", "size", "n_lora", "n_embd_out")
_CARD_TEXTS = (
    *("path", "fingerprint", "ftype", "reasoning_format", "media_marker"),
    *("bos_token", "eos_token", "build", "device", "pooling"),
)
_LONGEST_TEXT = 8192
"""Characters of these and of a tag: `build` is in every chunk of a stream."""


def implausible(message: Message | TaskMessage) -> str:
    """Return which number of a message cannot be; empty if all is well."""
    check = _CHECKS.get(type(message))
    if check is None:
        return _cost(message) if isinstance(message, Terminal) else ""
    return check(message)


def is_answer(request: TaskMessage, end: Terminal) -> bool:
    """Return whether a task may end so: each kind of request has its own answer, of its size."""
    if isinstance(end, Failed):
        return True
    return isinstance(end, _ANSWERS.get(type(request), Terminal)) and _fits(request, end)


def _fits(request: TaskMessage, end: Terminal) -> bool:
    """Return whether an answer has a number, or a vector, for each part of its request."""
    match request, end:
        case Embed(inputs=inputs), Embedded(vectors=vectors, n_embd=n_embd):
            if n_embd <= 0 or not len(inputs) == len(vectors) == len(end.n_tokens):
                return False
            sizes, size = set(map(len, vectors)), 4 * n_embd
            return sizes == {size} if end.is_pooled else not any(n % size for n in sizes)
        case Rerank(documents=documents), Reranked(scores=scores):
            return len(scores) == len(documents) and all(map(math.isfinite, scores))
        case Tokenize(with_pieces=with_pieces), Tokenized(tokens=tokens, sizes=sizes):
            return not len(tokens) % 4 and len(sizes) == (len(tokens) if with_pieces else 0)
    return True


def overstated(end: Terminal, n_seen: int) -> str:
    """Return which count at the end of an answer exceeds the tokens that were received.

    A wrong count would be charged to the client's key, and distort the usual length of an answer.
    """
    most = n_seen + MAX_UNSEEN
    if isinstance(end, Done) and max(end.n_predicted, end.timings.predicted_n) > most:
        return "n_predicted"
    return "usage.n_predicted" if end.usage.n_predicted > most else ""


def overread(message: TaskMessage, longest: Callable[[], int], n_seen: int) -> str:
    """Return which number is more than a worker can have read of a request.

    It would be charged to the client's key and delay its next requests. `longest` returns the
    longest prompt of the request; it is called only for long prompts.
    """
    read = _reported_reading(message)
    if max(read.values(), default=0) <= MAX_ADDED:
        return ""
    most = longest() + n_seen + MAX_UNSEEN
    for name, n in read.items():
        if n > most * (_MAX_REREADINGS if name == "n_read" else 1):
            return name
    return ""


def longest_prompt(request: TaskMessage) -> int:
    """Return a number of tokens that the prompt of a request cannot exceed."""
    n_tokens, parts = MAX_ADDED, list[Any]()
    match request:
        case Generate(prompt=prompt, chat=chat, infill=infill, media=media, partial_answer=partial):
            parts += [prompt, partial.tokens if partial is not None else ()]
            if chat is not None:
                parts += [chat.messages, chat.tools, chat.kwargs]
            if infill is not None:
                parts += [infill.prefix, infill.suffix, infill.extra]
            n_tokens += len(media) * MAX_ADDED
        case Embed(inputs=inputs, media=media):
            parts.append(inputs)
            n_tokens += len(media) * MAX_ADDED
        case Rerank(query=query, documents=documents):
            parts += [documents, [query] * len(documents)]
        case _:
            return MAX_TOKENS
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            n_tokens += _BYTES_PER_CHARACTER * len(part) + 1
        elif isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, list | tuple):
            n_tokens += len(part)
            parts += [value for value in part if not isinstance(value, int | float)]
    return n_tokens


def _reported_reading(message: TaskMessage) -> dict[str, int]:
    """Return what a message says of the length of a prompt."""
    match message:
        case Started(n_prompt=n_prompt, n_cached=n_cached):
            return {"n_prompt": n_prompt, "n_cached": n_cached}
        case PromptRead(n_read=n_read, n_cached=n_cached):
            return {"n_read": n_read, "n_cached": n_cached}
        case Done(n_prompt=n_prompt, n_cached=n_cached, usage=usage):
            more = {"n_read": usage.n_read, "usage.n_cached": usage.n_cached}
            return {"n_prompt": n_prompt, "n_cached": n_cached, **more}
        case Terminal(usage=usage):
            return {"n_read": usage.n_read, "n_cached": usage.n_cached}
    return {}


def implausible_stats(stats: Stats) -> str:
    """Return which counter of a worker cannot be; it is no reason to lose the worker."""
    return _all(stats)


def _heartbeat(heartbeat: Heartbeat) -> str:
    for name in ("granted", "others"):
        if why := _credits(name, getattr(heartbeat, name)):
            return why
    return "" if 0 < heartbeat.stall_s < math.inf else "stall_s"


def _started(message: Started) -> str:
    counts = _counts(message, ("n_prompt", "n_cached", "n_reread"))
    return counts or _slot(message.slot)


def _progress(message: Progress) -> str:
    counts = _counts(message, ("total", "cached", "processed"))
    return counts or ("" if 0 <= message.time_ms < _MAX_COUNT else "time_ms")


def _done(message: Done) -> str:
    counts = _counts(message, ("n_prompt", "n_cached", "n_predicted", "n_past"))
    return counts or _slot(message.slot) or _all(message.timings) or _cost(message)


def _slot(slot: int) -> str:
    return "" if -1 <= slot < MAX_SLOTS else "slot"


def _vectors(message: Embedded | Reranked) -> str:
    n_tokens = message.n_tokens
    every = (n_tokens,) if isinstance(n_tokens, int) else n_tokens
    return _cost(message) if all(0 <= n < MAX_TOKENS for n in every) else "n_tokens"


def _slot_acted(message: SlotActed) -> str:
    for name in ("n_bytes", "time_ms"):
        if not 0 <= getattr(message, name) < _MAX_COUNT:
            return name
    return _counts(message, ("n_tokens",)) or _cost(message)


def _settings(message: SettingsReport) -> str:
    versions = (message.scales_version, message.system_version)
    return "" if all(0 <= n < MAX_VERSIONS for n, _ in versions) else "a version"


def _card(card: ModelCard) -> str:
    names = (card.name, *card.aliases)
    if len(names) > _MAX_NAMES or len(card.tags) > _MAX_NAMES:
        return "aliases"
    if not all(0 < len(text) <= LONGEST_NAME for text in names):
        return "name"
    if not 0 <= card.n_slots <= MAX_SLOTS or not 0 <= card.n_prefetch <= MAX_SLOTS:
        return "n_slots"
    texts = {name: len(getattr(card, name)) for name in _CARD_TEXTS}
    texts["tags"] = max(map(len, card.tags), default=0)
    if long := next((name for name, n in texts.items() if n > _LONGEST_TEXT), ""):
        return long
    sizes = next((name for name in _CARD_SIZES if not 0 <= getattr(card, name) < _MAX_COUNT), "")
    return sizes or _counts(card, _CARD_COUNTS)


def _cost(message: Terminal) -> str:
    return _counts(message.usage, _USAGE)


def _credits(name: str, n: int) -> str:
    return "" if -_MAX_CREDITS < n < _MAX_CREDITS else name


def _counts(message: Any, names: tuple[str, ...]) -> str:
    for name in names:
        if not 0 <= getattr(message, name) < MAX_TOKENS:
            return name
    return ""


def _all(values: Stats | Timings) -> str:
    """Look at every number: none is negative, endless or absurd."""
    for name in _STATS if isinstance(values, Stats) else _TIMINGS:
        value = getattr(values, name)
        every = value if isinstance(value, tuple) else (value,)
        if len(every) > MAX_SLOTS or not all(0 <= number < _MAX_COUNT for number in every):
            return name
    return ""


_CHECKS: dict[type, Callable[[Any], str]] = {
    Heartbeat: _heartbeat,
    Started: _started,
    Progress: _progress,
    PromptRead: lambda message: _counts(message, ("n_read", "n_cached")),
    Done: _done,
    Embedded: _vectors,
    Reranked: _vectors,
    SlotActed: _slot_acted,
    Ready: lambda message: _credits("granted", message.granted) or _card(message.card),
    Recall: lambda message: _credits("n", message.n),
    SettingsReport: _settings,
}
_ANSWERS: dict[type, type[Terminal]] = {
    Generate: Done,
    Tokenize: Tokenized,
    Detokenize: Detokenized,
    Inspect: Inspected,
    Render: Rendered,
    Embed: Embedded,
    Rerank: Reranked,
    SlotAction: SlotActed,
    EndReasoning: ReasoningEnded,
    SetLora: LoraListed,
    SetSystemPrompt: SystemPromptSet,
}
