"""What is known of an answer whose worker was lost, so that another one can go on with it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What a client has of an answer already, whose worker was lost: another one goes on from it.

    Counts are characters of what the deltas said. What they lack of the tokens' text leaves first.
    """

    tokens: tuple[int, ...] = ()
    """Tokens of the answer, in order."""
    n_text: int = 0
    n_reasoning: int = 0
    n_arguments: tuple[int, ...] = ()
    """By tool call; the id and the name of each call that is listed were said."""
    seed: int | None = None
    """`Started.seed` of the worker that began."""
    sampler_state: tuple[float, ...] = ()
    """`Delta.sampler_state` of the last token."""
    n_cached: int = 0
    """`Started.n_cached` of the worker that began: what the client is told."""
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0
    """Times spent before; the time until another worker goes on is not among them."""
    echoed: bool = False
    """`Delta.prompt` was said."""
    pauses: bool = False
    """When the tokens before the last one are read, wait for `Proceed`. With `tokens` only."""
