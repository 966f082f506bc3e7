"""What the messages tell: models, counters, times, probabilities, slots. Plain values."""

from dataclasses import dataclass

from protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What the gateway must know of a loaded model; counts are tokens, sizes are bytes."""

    name: str
    path: str
    n_slots: int
    n_prefetch: int = 0
    """Tasks that may be sent beyond the free slots, so that their prompts are tokenized early."""
    n_ctx: int
    """Context of one slot."""
    n_ctx_total: int
    n_ctx_train: int = 0
    n_vocab: int = 0
    vocab_type: int = 0
    n_embd: int = 0
    n_params: int = 0
    size: int = 0
    ftype: str = ""
    description: str = ""
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    build: str = ""
    """`b<number>-<commit>` of llama.cpp; `system_fingerprint` in OpenAI's answers."""
    defaults: SamplingParams = SamplingParams()
    """What a request field takes that the client leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counters since the worker started; the gateway keeps the sums of dead workers."""

    n_prompt: int = 0
    """Prompt tokens processed, cached ones excluded."""
    n_cached: int = 0
    prompt_s: float = 0.0
    n_predicted: int = 0
    predicted_s: float = 0.0
    n_decode: int = 0
    n_busy: int = 0
    """Busy slots summed over `n_decode` decode calls."""
    n_tokens_max: int = 0
    n_kv_used: int = 0
    n_kv: int = 0
    decode_s: float = 0.0
    sample_s: float = 0.0
    step_s: float = 0.0
    """Wall time of all steps; 1 - (decode_s + sample_s) / step_s is Python's share."""
    gap_s: float = 0.0
    """Wall time between two decode calls of consecutive steps, sampling included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Measured times of one task so far, in ms; rates are derived by the gateway."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProb:
    """A chosen token with its likeliest rivals.

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
    n_prompt: int = 0
    n_prompt_processed: int = 0
    n_cached: int = 0
    n_past: int = 0
    n_decoded: int = 0
    n_remain: int = -1
    has_next_token: bool = False
    has_new_line: bool = False
    params: SamplingParams | None = None
