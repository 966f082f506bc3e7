"""The conversations of a load; each is determined by its seed and number alone."""

from dataclasses import dataclass

from gateway.bench.lengths import Lengths
from gateway.bench.words import drawn, text


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request adds to its conversation."""

    inputs: tuple[str, ...]
    """One text; several for a batch of embeddings."""
    n_max: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests that follow each other; each repeats those before it and their answers."""

    index: int
    system: str
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """What the conversations of a load look like. Lengths are in words, about one token each."""

    prompt: Lengths = Lengths(128, 128)
    output: Lengths = Lengths(64, 64)
    shared_prefix: int = 0
    """Length of the system prompt that all conversations of a group share."""
    groups: int = 1
    turns: int = 1
    batch: int = 1
    prompts: tuple[str, ...] = ()
    """Prompts of a file, used in turn instead of drawn words."""


def conversation(shape: LoadShape, seed: int, index: int, kind: str = "load") -> Conversation:
    """Draw the conversation of this number."""
    rng = drawn(seed, kind, index)
    group = index % shape.groups
    prefix = text(drawn(seed, "group", group), shape.shared_prefix)
    first = index * shape.turns * shape.batch
    inputs = [
        shape.prompts[number % len(shape.prompts)]
        if shape.prompts
        else text(rng, shape.prompt.draw(rng))
        for number in range(first, first + shape.turns * shape.batch)
    ]
    asks = tuple(
        Ask(tuple(inputs[at : at + shape.batch]), shape.output.draw(rng))
        for at in range(0, len(inputs), shape.batch)
    )
    return Conversation(index, prefix, asks)


def background(n_tokens: int) -> LoadShape:
    """Return the shape of streams that only decode: short questions, long answers."""
    return LoadShape(prompt=Lengths(32, 32), output=Lengths(n_tokens, n_tokens))
