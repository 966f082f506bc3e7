"""The part of one task's answer that has arrived, from whichever workers.

It is all that another worker needs to continue (`PartialAnswer`): the token ids, and how many
characters of each part were passed on. Four bytes a token, whatever the tokens say.
"""

from array import array

from gateway.pool.plausible import MAX_UNSEEN
from protocol.wire.messages import Delta, Started
from protocol.wire.partial_answer import PartialAnswer


class Answer:
    """The part of an answer that its stream has got. Written by the stream, for every token."""

    def __init__(self) -> None:
        self.first_at = 0.0
        """When the first delta came."""
        self.last_at = 0.0
        """When the latest delta of the present attempt came; 0 before its first."""
        self.n_predicted = 0
        self.tokens = array("i")
        self.n_text = self.n_reasoning = 0
        """Characters that were passed on."""
        self.n_arguments: list[int] = []
        """Characters of each tool call's arguments; a call that stands here was announced."""
        self.sampler_state: tuple[float, ...] = ()
        """Of the latest delta with tokens; only workers understand it."""
        self.seed: int | None = None
        """The seed that the first worker really used."""
        self.n_prompt = self.n_cached = 0
        """As the first worker counted them; reported to the client."""
        self.told_attempt = -1
        """The attempt whose `Started` and `Progress` are passed on; -1 until one has come."""
        self.is_echoed = False
        """Whether the tokens of the prompt were passed on."""
        self.prompt_s = self.predicted_s = 0.0
        """Time that was spent on it, without the gaps between attempts."""
        self._broken_at = 0.0
        self._since = 0.0
        """When the present attempt brought its first delta."""

    @property
    def has_started(self) -> bool:
        """Whether another worker could continue it."""
        return bool(self.tokens) or self.is_echoed

    @property
    def n_reported(self) -> int:
        """Tokens as the worker counts them, limited to what is plausible."""
        return max(0, min(self.n_predicted, len(self.tokens) + MAX_UNSEEN))

    @property
    def latest_at(self) -> float:
        """When the latest delta came, also between two workers; 0 before the first."""
        return self.last_at or self._broken_at

    @property
    def itl_s(self) -> float:
        """Mean seconds between two tokens so far."""
        return (self.latest_at - self.first_at) / max(1, self.n_predicted - 1)

    def start(self, message: Started) -> None:
        """Note the first worker's counts of the prompt; those of later workers are ignored."""
        if not self.has_started:
            self.seed = message.seed
            if self.told_attempt < 0:
                self.n_prompt, self.n_cached = message.n_prompt, message.n_cached

    def begin(self, delta: Delta, started_at: float | None, now: float) -> float:
        """Note the first delta of an attempt; return the gap that its client saw, 0 if none."""
        self._since = now
        if delta.prompt:
            self.is_echoed = True
        if self._broken_at:
            return now - self._broken_at
        self.first_at = now
        self.prompt_s = now - started_at if started_at is not None else 0.0
        return 0.0

    def add_parts(self, delta: Delta) -> None:
        """Count reasoning and tool calls; raises `ValueError` for a call out of order."""
        self.n_reasoning += len(delta.reasoning)
        counts = self.n_arguments
        for call in delta.tool_calls:
            if not 0 <= call.index <= len(counts):
                raise ValueError(f"tool call {call.index} follows {len(counts)} calls")
            if call.index == len(counts):
                counts.append(0)
            counts[call.index] += len(call.arguments)

    def pause(self) -> None:
        """Note that its worker was lost: another one will continue it."""
        if self.last_at:
            self.predicted_s += self.last_at - self._since
            self._broken_at = self.last_at
            self.last_at = 0.0

    def partial(self, *, pause_after_prefill: bool = False) -> PartialAnswer | None:
        """Return what the next worker needs to continue; None if it starts again."""
        if not self.has_started:
            return None
        return PartialAnswer(
            tokens=tuple(self.tokens),
            n_text=self.n_text,
            n_reasoning=self.n_reasoning,
            n_arguments=tuple(self.n_arguments),
            seed=self.seed,
            n_cached=self.n_cached,
            prompt_ms=self.prompt_s * 1e3,
            predicted_ms=self.predicted_s * 1e3,
            echoed=self.is_echoed,
            sampler_state=self.sampler_state,
            pause_after_prefill=pause_after_prefill,
        )
