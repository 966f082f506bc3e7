"""Counters of the engine as plain numbers; whoever wants a format makes it elsewhere."""

from dataclasses import asdict, dataclass

from protocol.facts import Stats


@dataclass(slots=True)
class Counters:
    """The mutable twin of `protocol.messages.Stats`, owned by the engine thread."""

    n_prompt: int = 0
    n_cached: int = 0
    prompt_s: float = 0.0
    n_predicted: int = 0
    predicted_s: float = 0.0
    n_decode: int = 0
    n_busy: int = 0
    n_tokens_max: int = 0
    n_kv_used: int = 0
    n_kv: int = 0
    decode_s: float = 0.0
    sample_s: float = 0.0
    step_s: float = 0.0
    gap_s: float = 0.0

    def snapshot(self) -> Stats:
        """Freeze the numbers for a message."""
        return Stats(**asdict(self))
