"""A model card and messages to build answers from."""

from typing import Any

from protocol.wire.facts import ModelCard, Timings, TokenProb
from protocol.wire.messages import Done, Finish
from protocol.wire.sampling import SamplingParams

CARD = ModelCard(
    name="tiny",
    path="/models/tiny.gguf",
    n_slots=2,
    n_ctx=512,
    n_ctx_total=1024,
    n_ctx_train=2048,
    n_vocab=100,
    build="b1-abc",
)

PROB = TokenProb(id=3, piece=b" a", p=-0.5, top=((3, b" a", -0.5), (4, b"\xc3", -1.5)))


def done(**fields: Any) -> Done:
    """Return a terminal message with figures in it."""
    values: dict[str, Any] = {
        "finish": Finish.LIMIT,
        "prompt": "<s> hi",
        "n_prompt": 4,
        "n_cached": 1,
        "n_predicted": 2,
        "n_past": 5,
        "slot": 1,
        "timings": Timings(cache_n=1, prompt_n=3, prompt_ms=6.0, predicted_n=2, predicted_ms=4.0),
    }
    return Done(**(values | fields))


def params(**fields: Any) -> SamplingParams:
    """Return parameters with some fields set."""
    return SamplingParams(**fields)
