"""The beginning of an answer whose worker was lost, so that another worker can continue it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialAnswer:
    """What a client has of an answer that another worker continues.

    Counts are in characters of the deltas. The rest of the tokens' text is sent first.
    """

    tokens: tuple[int, ...] = ()
    """Tokens of the answer, in order."""
    n_text: int = 0
    n_reasoning: int = 0
    n_arguments: tuple[int, ...] = ()
    """By tool call; the id and the name of each listed call were sent, too."""
    seed: int | None = None
    """`Started.seed` of the worker that began."""
    sampler_state: tuple[float, ...] = ()
    """`Delta.sampler_state` of the last token."""
    n_cached: int = 0
    """`Started.n_cached` of the worker that began, which the client gets to see."""
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0
    """Times spent before, without the time until another worker continues."""
    echoed: bool = False
    """`Delta.prompt` was sent."""
    pause_after_prefill: bool = False
    """When the tokens before the last one are read, wait for `Proceed`. With `tokens` only."""
