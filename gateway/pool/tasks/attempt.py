"""One attempt at a task on one worker: where, why there, how long, and what it cost. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from protocol.wire.facts import Usage
from protocol.wire.messages import Done, Failed, Started, Terminal
from protocol.wire.side_tasks import Embedded, Reranked

LOST = "lost"
"""How an attempt ends whose worker did not end it."""


class Candidate(NamedTuple):
    """A worker that was compared, as the routing policy saw it."""

    worker: str
    cost_s: float
    """Predicted time to the first token, plus the delay that the task causes other streams."""
    n_cached: int
    """Tokens of the prompt that should be cached there."""
    n_load: int
    """Tasks that it had."""


@dataclass(slots=True, eq=False)
class Attempt:
    """Written by the dispatcher; small, because the latest requests keep theirs."""

    worker: str
    route: str
    """Why it went there (`RouteReason`)."""
    assigned_at: float
    n_before: int = 0
    """Tokens of the answer that it continued."""
    n_expected: int = 0
    """Prompt tokens that should have been cached there."""
    predicted_s: float = 0.0
    """Predicted time to the first token; 0 is unknown."""
    n_load: int = 0
    """Tasks that the worker had, this one not counted."""
    rivals: Sequence[Candidate] = ()
    """Some of the workers that were compared, the fastest first."""
    slot: int = -1
    started_at: float = 0.0
    """When its worker began, 0 until then; the same holds for the two times below."""
    first_at: float = 0.0
    ended_at: float = 0.0
    reading_s: float = 0.0
    writing_s: float = 0.0
    """Times that its worker measured for prompt and answer; 0 if it continued another attempt."""
    end: str = ""
    """How it ended: as the task did (`finish`), or why it went elsewhere."""
    n_prompt: int = 0
    n_cached: int = 0
    """Cached tokens of the prompt, as reported to the client."""
    is_reported: bool = False
    """Whether the worker has reported `n_prompt` and `n_cached` at the end."""
    n_read: int = 0
    n_reused: int = 0
    n_predicted: int = 0
    """These three are as in `Usage`, by the worker's last report."""

    @property
    def slot_s(self) -> float | None:
        """From its assignment until it had a slot; None if it never had."""
        return self.started_at - self.assigned_at if self.started_at else None

    def start(self, message: Started, now: float) -> None:
        """Note that the worker has started."""
        self.started_at, self.slot = now, message.slot
        self.n_prompt, self.n_cached = message.n_prompt, message.n_cached

    def account(self, usage: Usage) -> None:
        """Raise the counts to what the worker has counted so far; they never fall."""
        self.n_read = max(self.n_read, usage.n_read)
        self.n_reused = max(self.n_reused, usage.n_cached)
        self.n_predicted = max(self.n_predicted, usage.n_predicted)

    def finish(self, message: Terminal, now: float) -> None:
        """Store the worker's terminal message; one that the gateway made for it has no usage."""
        self.account(message.usage)
        match message:
            case Done():
                end = str(message.finish)
                if not self.n_before:
                    self.reading_s = message.timings.prompt_ms / 1e3
                    self.writing_s = message.timings.predicted_ms / 1e3
                if message.n_prompt:
                    self.n_prompt, self.n_cached = message.n_prompt, message.n_cached
                    self.is_reported = True
            case Failed():
                end = str(message.code)
            case Embedded() | Reranked():
                end = "ok"
                n_tokens = message.n_tokens
                self.n_prompt = n_tokens if isinstance(n_tokens, int) else sum(n_tokens)
            case _:
                end = "ok"
        self.close(end, now)

    def close(self, end: str, now: float) -> None:
        """Record its end and why; only the first reason is kept."""
        self.end = self.end or end
        self.ended_at = now

    def view(self, number: int, base_s: float) -> dict[str, Any]:
        """Return it as JSON; times in seconds since `base_s`."""
        return {
            "attempt": number,
            "worker": self.worker,
            "slot": self.slot if self.slot >= 0 else None,
            "end": self.end or None,
            "why": {
                "route": self.route or None,
                "n_expected_cached": self.n_expected,
                "predicted_s": round(self.predicted_s, 4) or None,
                "n_load": self.n_load,
                "compared": [
                    {
                        "worker": rival.worker,
                        "cost_s": round(rival.cost_s, 4),
                        "n_cached": rival.n_cached,
                        "n_load": rival.n_load,
                    }
                    for rival in self.rivals
                ],
            },
            "assigned_s": _since(self.assigned_at, base_s),
            "started_s": _since(self.started_at, base_s),
            "first_token_s": _since(self.first_at, base_s),
            "ended_s": _since(self.ended_at, base_s),
            "n_prompt": self.n_prompt,
            "n_cached": self.n_cached,
            "n_read": self.n_read,
            "n_reused": self.n_reused,
            "n_predicted": self.n_predicted,
        }


def _since(at: float, base_s: float) -> float | None:
    return round(max(0.0, at - base_s), 4) if at else None
