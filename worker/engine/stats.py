"""Counters of the engine as plain numbers; whoever wants a format makes it elsewhere."""

from dataclasses import asdict, dataclass, field

from protocol.facts import Stats


@dataclass(slots=True)
class Counters:
    """The mutable twin of `protocol.facts.Stats`, owned by the engine thread."""

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
    held_s: float = 0.0
    n_evicted: int = 0
    n_restored: int = 0
    n_parked: int = 0
    n_branches: int = 0
    n_host_bytes: int = 0
    n_draft: int = 0
    n_draft_accepted: int = 0
    n_drafts: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def judged(self, n_guessed: int, n_accepted: int) -> None:
        """Count a draft of which the first `n_accepted` tokens were right."""
        self.n_drafts += 1
        self.n_draft += n_guessed
        self.n_draft_accepted += n_accepted
        self.accepted_at += [0] * (n_accepted - len(self.accepted_at))
        for position in range(n_accepted):
            self.accepted_at[position] += 1

    def snapshot(self) -> Stats:
        """Freeze the numbers for a message."""
        return Stats(**asdict(self) | {"accepted_at": tuple(self.accepted_at)})
