"""Guesses how long a prompt is before a worker has counted its tokens."""

from protocol.wire import messages as m
from protocol.wire.messages import content_text
from protocol.wire.side_tasks import Embed, Render, Rerank

_CHARS_PER_TOKEN = 4
"""Of English text, roughly; corrected by what each worker counts (`Throughput.length_ratio`)."""


def guess_tokens(task: m.TaskMessage) -> int:
    """Guess the tokens that a task has to read, at least 1."""
    if isinstance(task, Rerank):  # the query is read with each document
        return max(1, sum(_in_text(len(task.query) + len(text)) for text in task.documents))
    n = 0
    for part in _parts(task):
        if isinstance(part, str):
            n += _in_text(len(part))
        else:
            n += len(part) if isinstance(part, tuple) else 1
    return max(1, n)


def _in_text(n_chars: int) -> int:
    return max(1, n_chars // _CHARS_PER_TOKEN)


def _parts(task: m.TaskMessage) -> tuple[object, ...]:
    """List what a task has to read: texts, tokens, or tuples of tokens."""
    match task:
        case m.Generate(chat=chat) | Render(chat=chat) if chat is not None:
            return tuple(content_text(message.get("content")) for message in chat.messages)
        case m.Generate(prompt=content) | m.Tokenize(content=content):
            return (content,) if isinstance(content, str) else content or ()
        case m.Detokenize(tokens=tokens):
            return (tokens,)
        case Embed(inputs=inputs):
            return inputs
    return ()
