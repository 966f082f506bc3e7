"""Settings of the engine."""

from dataclasses import dataclass

from worker.engine.cache.self_extend import SelfExtend


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of the engine; the backend reports what the model can do."""

    n_slots: int
    n_ctx: int
    """Tokens that one slot can hold."""
    similarity: float = 0.1
    """A slot that holds more than this share of a prompt is chosen for it; 0 turns that off."""
    step_target_s: float = 0.2
    """Maximum seconds of a step, unless more tasks wait for their first token than stream."""
    context_shift: bool = False
    spec_slots: int = 0
    """Speculate while at most this many slots decode."""
    host_bytes: int = 0
    """Host memory for prompts that leave the context; below 0 there is no limit."""
    n_checkpoints: int = 32
    """Checkpoints of a slot, where the memory of the model needs them."""
    checkpoint_bytes: int = 0
    """Host memory for all checkpoints; at 0 their number alone is bounded."""
    self_extend: SelfExtend | None = None
    shows_texts: bool = False
    """Reports of slots contain clients' texts."""
    stall_s: float = 10.0
    """Minimum time after which a piece of work counts as stuck, in seconds."""
