"""Messages with which a gateway asks a worker for something."""

from dataclasses import dataclass
from typing import Any

from protocol.wire.messages.envelope import ClientTask, TaskMessage
from protocol.wire.partial_answer import PartialAnswer
from protocol.wire.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation to be rendered by the model's chat template in the worker."""

    messages: tuple[dict[str, Any], ...] = ()
    """As in OpenAI's API. `content` is a text, or a list of `{"type": "text", "text": …}`."""
    kwargs: dict[str, Any] | None = None
    """Extra variables of the template (`chat_template_kwargs`)."""
    tools: tuple[dict[str, Any], ...] = ()
    """OpenAI's tool objects, `{"type": "function", "function": {…}}`."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or `function:NAME` for a named one."""
    parallel_tool_calls: bool | None = None
    """Whether one answer may hold several calls; unset is the template's habit."""
    schema: str | None = None
    """JSON text of the schema that the answer must match; `{}` is any object."""
    reasoning_format: str = "auto"
    """`none` leaves reasoning in the text, `deepseek` and `auto` take it out."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The last message is the assistant's and is continued."""
    repeats_final_message: bool = False
    """A stream begins with the text of the last message if that is continued."""
    continue_reasoning: bool | None = None
    """The message's reasoning is continued, not its text; unset: what the message ends with."""


def content_text(content: str | list[dict[str, Any]] | None, between: str = "\n") -> str:
    """Return the content of a message as one text."""
    if content is None or isinstance(content, str):
        return content or ""
    return between.join([part["text"] for part in content])


@dataclass(frozen=True, slots=True, kw_only=True)
class Infill:
    """A gap in a text: what stands before and after it, and other files for context."""

    prefix: str | tuple[int | str, ...] = ""
    suffix: str | tuple[int | str, ...] = ""
    extra: tuple[tuple[str, str], ...] = ()
    """File name and text of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate(ClientTask):
    """Continue a prompt. Exactly one of `prompt` and `chat` is set, unless there is a gap."""

    prompt: str | tuple[int | str, ...] | None = None
    """Text, or tokens and texts mixed; only a leading text gets BOS."""
    chat: Chat | None = None
    params: SamplingParams
    schema: str | None = None
    """JSON text of a schema for the text of a `prompt`; a chat has its own."""
    infill: Infill | None = None
    """What stands around the gap; `prompt` is then the text before it, after the prefix."""
    media: tuple[bytes, ...] = ()
    """Images or sounds in the order of their markers in the prompt."""
    media_fields: tuple[str, ...] = ()
    """The fields of the client's request that hold them, for error messages."""
    salt: str = ""
    """Namespace of the cache: a prompt is reused only within its namespace."""
    tenant: str = ""
    """Hash of the tenant: tenants take turns where tasks cannot share a batch."""
    chain: bytes = b""
    """Hashes of the prompt's blocks, `BLOCK_BYTES` each. Each covers all blocks before it, too. The
    worker reports by them what it has cached (`Cached`). Empty: it reports nothing."""
    echo: bool = False
    """The first delta has the prompt's own tokens, with `n_probs` also their probabilities."""
    returns_prompt: bool = False
    """`Done` has the text to which a chat was rendered (that of a `prompt` it always has), and the
    text of an answer that is not streamed before it was parsed."""
    partial_answer: PartialAnswer | None = None
    """The beginning of an answer that is continued; None: a new answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize(ClientTask):
    """Text (or texts and tokens mixed) to tokens; answered without a slot."""

    content: str | tuple[int | str, ...]
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenize(ClientTask):
    """Tokens to text; answered without a slot."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect(TaskMessage):
    """Ask what each slot is doing; answered between two engine steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed(TaskMessage):
    """Go on with an answer that pauses after its prompt; comes after its `Started`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(TaskMessage):
    """End the task within one step; it still ends with its one terminal message."""
