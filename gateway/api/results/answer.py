"""What answers of several dialects repeat: their identity and why a choice ended."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.wire.facts import ModelCard
from protocol.wire.messages import Finish

FINISH_REASONS: Mapping[Finish, str] = {
    Finish.EOS: "stop",
    Finish.WORD: "stop",
    Finish.LIMIT: "length",
    Finish.CANCELLED: "length",
    Finish.NONE: "length",
}
"""llama-server answers `length` to all but a stop string and the model's own end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Fields that every chunk of an answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str


def identity(card: ModelCard) -> Identity:
    """Return the identity of a new answer."""
    return Identity(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=card.name,
        fingerprint=card.build,
    )
