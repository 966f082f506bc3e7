"""Tasks beside generation, and what ends each of them. They take no slot and no credit."""

from dataclasses import dataclass

from protocol.wire.messages import Chat, ClientTask, TaskMessage, Terminal
from protocol.wire.sharing import CONFIGURED, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Render(ClientTask):
    """Write a conversation with the chat template, without running it."""

    chat: Chat
    media: tuple[bytes, ...] = ()
    """Images or sounds for its markers; their tokens are counted, too."""
    media_fields: tuple[str, ...] = ()
    """The fields of the client's request that hold them, for error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered(Terminal):
    """Answers `Render`; `n_tokens` counts what a generation would read."""

    prompt: str
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed(ClientTask):
    """Turn texts into vectors. `normalize`: -1 none, 0 max-abs int16, 2 Euclidean, p p-norm."""

    inputs: tuple[str | tuple[int | str, ...], ...]
    normalize: int = 2
    media: tuple[bytes, ...] = ()
    media_fields: tuple[str, ...] = ()
    """Names of the request's fields that hold them, for error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded(Terminal):
    """Answers `Embed`: for each input its vectors as little-endian float32, one after the other.

    With a pooling there is one vector an input; without, one a token.
    """

    vectors: tuple[bytes, ...]
    n_embd: int
    n_tokens: tuple[int, ...]
    is_pooled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank(ClientTask):
    """Judge how well each document answers a query."""

    query: str
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranked(Terminal):
    """Answers `Rerank`: one score a document, in their order."""

    scores: tuple[float, ...]
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReasoning(TaskMessage):
    """End the reasoning of a running generation now."""

    target: int
    """The generation's id, without the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningEnded(Terminal):
    """Answers `EndReasoning`."""

    is_running: bool
    """The generation was found; it need not have been reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAction(ClientTask):
    """Save, restore or erase the cache of the envelope's slot, once that is free."""

    action: str
    filename: str = ""
    owner: str = ""
    """Owner of the file's folder, where each API key has its own; empty: all share one."""
    salt: str = ""
    """Namespace of the cache: only tokens read in it are saved or erased, and restored to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotActed(Terminal):
    """Answers `SlotAction`."""

    n_tokens: int
    n_bytes: int = 0
    time_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLora(TaskMessage):
    """Set the scales of all adapters (those not named to 0), or only list them (`scales` None).

    Nothing is set if the worker has a newer version.
    """

    scales: tuple[tuple[int, float], ...] | None = None
    version: Version = CONFIGURED


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """One loaded adapter."""

    id: int
    path: str
    scale: float
    task_name: str = ""
    prompt_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraListed(Terminal):
    """Answers `SetLora`."""

    adapters: tuple[LoraAdapter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSystemPrompt(TaskMessage):
    """Give all slots a common beginning (`system_prompt`); "" takes it away.

    Nothing is set if the worker has a newer version.
    """

    prompt: str
    anti_prompt: str = ""
    """Stop string of the generations that begin so."""
    assistant_name: str = ""
    version: Version = CONFIGURED


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPromptSet(Terminal):
    """Answers `SetSystemPrompt`."""
