"""Values in messages: model cards, counters, times, probabilities, slots."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.wire.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPrompt:
    """`system_prompt` of llama-server of 2023 and 2024: what all prompts begin with, and the names
    in a dialog.
    """

    prompt: str = ""
    anti_prompt: str = ""
    """What the user's turns begin with: it ends a generation."""
    assistant_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What the gateway must know of a loaded model; counts are tokens, sizes are bytes."""

    name: str
    path: str
    fingerprint: str = ""
    """Equal for workers that may continue each other's answers: same weights, and same options as
    far as they change the text."""
    aliases: tuple[str, ...] = ()
    """All its names, `name` included; empty means `name` alone."""
    tags: tuple[str, ...] = ()
    n_slots: int
    n_prefetch: int = 0
    """Tasks that may be sent beyond the free slots, so that their prompts are tokenized early."""
    n_ctx: int
    """Context of one slot."""
    n_ctx_total: int
    n_ctx_train: int = 0
    n_vocab: int = 0
    longest_piece: int = 0
    """Characters of the longest token; 0 is unknown."""
    vocab_type: int = 0
    n_embd: int = 0
    n_params: int = 0
    size: int = 0
    ftype: str = ""
    chat_template: str = ""
    reasoning_format: str = "auto"
    """Reasoning format of a chat that names none."""
    template_kwargs: dict[str, Any] | None = None
    """Template variables of every chat; those of the request take precedence."""
    jinja: bool = True
    """False: the built-in form of the template is used, without tools and reasoning."""
    parses_chats: bool = True
    """False: a chat's answer is the raw text, with reasoning and tool calls in it."""
    prefill_assistant: bool = True
    """Continue an assistant's message at the end of a chat, unless the request says otherwise."""
    media_marker: str = ""
    """What stands in a prompt where an image or a sound belongs; empty if the model takes none."""
    has_vision: bool = False
    has_audio: bool = False
    bos_token: str = ""
    eos_token: str = ""
    build: str = ""
    """`b<number>-<commit>` of llama.cpp; `system_fingerprint` in OpenAI's answers."""
    device: str = ""
    """The CPU or the GPUs that compute it, as llama.cpp describes them."""
    defaults: SamplingParams = SamplingParams()
    """Defaults for the fields that a request leaves out."""
    saves_slots: bool = False
    """It has a folder for saved slots."""
    n_lora: int = 0
    """LoRA adapters that it has loaded; their ids count from 0."""
    system_prompt: SystemPrompt = SystemPrompt()
    """The system prompt at the start of the worker."""
    can_generate: bool = True
    """False for encoders, which only make embeddings."""
    has_embeddings: bool = False
    pooling: str = ""
    """`none`, `mean`, `cls`, `last` or `rank`; only with `has_embeddings`."""
    n_embd_out: int = 0
    """Length of an embedding; the number of classes with pooling `rank`."""
    embd_normalize: int = 2
    fim_missing: tuple[str, ...] = ()
    """Which of the infill tokens `prefix`, `suffix` and `middle` the vocabulary lacks."""
    suffix_first: bool = False
    """The prompt of an infill begins with the suffix."""


NOT_SUMMED: Mapping[str, bool] = {"is_summed": False}
"""Marks a field of `Stats` of which only the newest value counts."""


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counters since the worker started; the gateway adds them up over all runs of a worker.

    A field that does not only grow is `NOT_SUMMED`. Not frozen: the engine counts in a subclass,
    and sends copies.
    """

    n_prompt: int = 0
    """Prompt tokens processed, cached ones excluded."""
    n_cached: int = 0
    prompt_s: float = 0.0
    n_predicted: int = 0
    predicted_s: float = 0.0
    n_decode: int = 0
    n_busy: int = 0
    """Busy slots summed over `n_decode` decode calls."""
    n_tokens_max: int = field(default=0, metadata=NOT_SUMMED)
    n_kv_used: int = field(default=0, metadata=NOT_SUMMED)
    n_kv_busy: int = field(default=0, metadata=NOT_SUMMED)
    """Of these, cells that running tasks hold, including some that idle texts share."""
    n_kv: int = field(default=0, metadata=NOT_SUMMED)
    decode_s: float = 0.0
    sample_s: float = 0.0
    step_s: float = 0.0
    """Wall time of all steps; 1 - (decode_s + sample_s) / step_s is Python's share."""
    gap_s: float = 0.0
    """Wall time between two decode calls of consecutive steps, sampling included."""
    n_evicted: int = 0
    """Texts that left the prefix cache."""
    n_restored: int = 0
    """Prompt tokens that were brought back from the host's memory."""
    n_preempted: int = 0
    """Times that a task gave its cells to others for a while."""
    n_branches: int = field(default=0, metadata=NOT_SUMMED)
    """Cached sequences beside those of the slots."""
    n_host_bytes: int = field(default=0, metadata=NOT_SUMMED)
    """Size of the copies in the host's memory."""
    n_draft: int = 0
    """Tokens drafted by speculative decoding."""
    n_draft_accepted: int = 0
    n_drafts: int = 0
    """Drafts that were judged."""
    accepted_at: tuple[int, ...] = field(default=(), metadata=NOT_SUMMED)
    """Accepted tokens by their position in the draft."""
    n_faults: int = 0
    """Tasks that ended by an exception that no task should cause."""
    link_lag_s: float = field(default=0.0, metadata=NOT_SUMMED)
    """The longest that anything waited for the link's thread since the last heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Measured times of one task so far, in ms; rates are derived by the gateway."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0
    """Tokens drafted by speculative decoding, and those of them that were accepted."""
    draft_n_accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one attempt at a task has cost its worker so far, in tokens.

    Over all attempts the numbers add up to those of `Stats` with the same meaning.
    """

    n_read: int = 0
    """Prompt tokens that were computed, and tokens that were computed again."""
    n_cached: int = 0
    """Tokens that were found in the cache instead."""
    n_predicted: int = 0
    """Tokens that were generated, without those of a worker before (`PartialAnswer`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProb:
    """A chosen token with the likeliest alternatives.

    `p` is a natural logarithm, or with `post_sampling_probs` a probability; `piece` the raw bytes.
    """

    id: int
    piece: bytes
    p: float
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReport:
    """One slot as `/slots` shows it; `params` is absent until it ran a task."""

    id: int
    is_processing: bool
    task_id: int = -1
    is_foreign: bool = False
    """The task belongs to another gateway, so its id means nothing to the asking one."""
    n_prompt: int = 0
    n_prompt_processed: int = 0
    n_cached: int = 0
    n_past: int = 0
    n_decoded: int = 0
    n_remain: int = -1
    has_next_token: bool = False
    has_new_line: bool = False
    is_speculative: bool = False
    finish: str = ""
    """How its last task ended; empty while one runs."""
    stopping_word: str = ""
    params: SamplingParams | None = None
    prompt: str | None = None
    """The prompt's text; None unless the worker is configured to show texts."""
    generated: str = ""
