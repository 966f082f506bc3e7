"""Makes preparation jobs: which tasks share one, its time limit, and its work."""

from collections.abc import Sequence
from functools import partial

from protocol.errors import TaskError
from protocol.wire import messages as m
from protocol.wire import side_tasks as s
from protocol.wire.shapes import measure
from worker.embedding.inputs import LongInputs, MediaInput, lengths
from worker.link.tasks.preparation import PreparationJob
from worker.prompt.choices import Choices
from worker.prompt.prompt import Prepared, PromptReader

Outcome = m.Terminal | Prepared | MediaInput | LongInputs | Exception

ORDERS = (s.SetLora, s.SetSystemPrompt)
"""They change the worker for all clients, so a cancel by one client does not stop them."""

_LIMIT_S, _LIMIT_PER_MIB_S, _LONGEST_S = 5.0, 2.0, 60.0
"""Time limit of a job, what each MiB of texts and media adds to it, and its maximum."""
_LARGE = 64 * 1024
"""Size in bytes from which a job counts as large."""
_TOKEN_BYTES = 64
"""Size of a token of a partial answer: replaying it takes as long as reading this much text."""


def job_of(reader: PromptReader, envelopes: Sequence[m.Envelope]) -> PreparationJob:
    """Return the job that prepares tasks; its outcome maps their keys to the result of each."""
    first = envelopes[0]
    size = _size(first.payload) * len(envelopes)  # they share their prompt
    size += sum(_resumed_size(envelope.payload) for envelope in envelopes)
    return PreparationJob(
        label=f"{type(first.payload).__name__} task={first.task.id} n={len(envelopes)}",
        work=partial(_outcomes, reader, tuple(envelopes)),
        limit_s=min(_LONGEST_S, _LIMIT_S + size / 2**20 * _LIMIT_PER_MIB_S),
        is_large=size > _LARGE,
        is_alone=isinstance(first.payload, ORDERS),
        connection=first.task.connection,
        keys=[envelope.task for envelope in envelopes],
    )


def _outcomes(reader: PromptReader, envelopes: Sequence[m.Envelope]) -> dict[m.TaskKey, Outcome]:
    """Prepare tasks one after the other; on a thread of `Preparation`."""
    found: dict[m.TaskKey, Outcome] = {}
    choices = Choices()
    for envelope in envelopes:
        try:
            found[envelope.task] = reader.prepare(envelope, choices)
        except TaskError as error:
            # Its frames hold the task with all media, and lead back here: a circle that stays until
            # garbage is looked for. Nobody logs them.
            found[envelope.task] = error.with_traceback(None)
        except Exception as error:
            found[envelope.task] = error
    return found


def shares_prompt(message: m.TaskMessage, other: m.Generate) -> bool:
    """Return whether two generations have the same prompt."""
    return (
        isinstance(message, m.Generate)
        and message.prompt == other.prompt
        and message.chat == other.chat
        and message.infill == other.infill
        and message.media == other.media
    )


def _size(message: m.TaskMessage) -> int:
    """Estimate the size of a task's input in bytes, without the answer that it continues."""
    match message:
        case m.Generate(prompt=prompt, chat=chat, infill=infill, media=media):
            n_around = _infill_length(infill)
            return _length(prompt) + _chat_length(chat) + n_around + sum(map(len, media))
        case s.Embed() | s.Rerank():
            media = message.media if isinstance(message, s.Embed) else ()
            return sum(map(len, media)) + sum(lengths(message))
        case s.Render(chat=chat, media=media):
            return _chat_length(chat) + sum(map(len, media))
        case m.Tokenize(content=content):
            return _length(content)
        case m.Detokenize(tokens=tokens):
            return len(tokens)
        case _:
            return 0


def _resumed_size(message: m.TaskMessage) -> int:
    if not isinstance(message, m.Generate) or message.partial_answer is None:
        return 0
    return len(message.partial_answer.tokens) * _TOKEN_BYTES


def _length(prompt: str | tuple[int | str, ...] | None) -> int:
    if prompt is None or isinstance(prompt, str):
        return len(prompt or "")
    if len(prompt) > _LARGE:  # summing up would take too long on the link's thread
        return len(prompt)
    return len(prompt) + sum(len(part) for part in prompt if isinstance(part, str))


def _infill_length(infill: m.Infill | None) -> int:
    if infill is None:
        return 0
    n_extra = sum(len(text) for _, text in infill.extra)
    return _length(infill.prefix) + _length(infill.suffix) + n_extra


def _chat_length(chat: m.Chat | None) -> int:
    if chat is None:
        return 0
    try:
        _, n_chars = measure([*chat.messages, *chat.tools, chat.kwargs], 0)
    except TypeError:  # a key that is no text: the wire can carry it, and no gateway sends it
        n_chars = 0
    return n_chars + len(chat.schema or "") + 512 * (len(chat.messages) + len(chat.tools))
