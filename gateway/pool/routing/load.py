"""How long a task would wait for its first token at a worker, from what was measured there.

Pure arithmetic over the gateway's own clock: what was assigned, when its reading began (`Started`)
and ended (the first delta). Seconds are comparable between workers of any speed, so that no ratio
between cached tokens and busy slots has to be guessed.
"""

from dataclasses import dataclass

_DECAY = 0.9
"""Of older observations with each new one: the last dozen or so count."""
_READ_PER_S = 500.0
"""Prompt tokens a second before anything was measured: a small model on two CPU cores."""
_WRITTEN_PER_S = 50.0
_ANSWER = 128.0
_SERVICE_S = 1.0
_CROWDING = 0.02
"""Share by which one more stream slows down those beside it: so much on a GPU, more on a CPU."""
_MEASURABLE = 32
"""Reading fewer tokens takes as long as a step, whatever their number."""


class Ratio:
    """A mean of recent observations as one sum over another, between them and what others see."""

    __slots__ = ("_over", "_prior", "_under", "_weight")

    def __init__(self, prior: "float | Ratio", weight: float) -> None:
        self._prior = prior
        self._weight = weight
        """Of the prior, in units of what is divided by; it never decays."""
        self._over = 0.0
        self._under = 0.0

    def __repr__(self) -> str:
        return f"<Ratio {self.value:g}>"

    @property
    def value(self) -> float:
        """The mean."""
        prior = self._prior.value if isinstance(self._prior, Ratio) else self._prior
        return (self._over + self._weight * prior) / (self._under + self._weight)

    def add(self, over: float, under: float) -> None:
        """Count an observation, here and in the prior that is shared with others."""
        self._over = _DECAY * self._over + over
        self._under = _DECAY * self._under + under
        if isinstance(self._prior, Ratio):
            self._prior.add(over, under)


class Throughput:
    """How fast a worker is; one that was not measured yet is taken for what the model's others are.

    The pace of a model is one without a model.
    """

    __slots__ = ("answer", "density", "reading", "service", "trust", "writing")

    def __init__(self, model: "Throughput | None" = None) -> None:
        weight = 1.0 if model else 0.1
        # The first that is measured must count for the others as much as for itself.
        self.reading: Ratio = Ratio(model.reading if model else _READ_PER_S, 0.05 * weight)
        """Prompt tokens a second, of all slots together."""
        self.writing: Ratio = Ratio(model.writing if model else _WRITTEN_PER_S, 0.5 * weight)
        """Tokens a second of one stream."""
        self.answer: Ratio = Ratio(model.answer if model else _ANSWER, 1.0 * weight)
        """Tokens of an answer."""
        self.service: Ratio = Ratio(model.service if model else _SERVICE_S, 1.0 * weight)
        """Seconds in which a task has a slot."""
        self.density: Ratio = Ratio(model.density if model else 1.0, 64.0 * weight)
        """Tokens of a prompt, of those that were guessed from its length."""
        self.trust: Ratio = Ratio(model.trust if model else 1.0, 256.0 * weight)
        """Tokens that were reused, of those that should have been."""

    def __repr__(self) -> str:
        return f"<Throughput read={self.reading.value:.0f}/s write={self.writing.value:.0f}/s>"


@dataclass(slots=True)
class _Reading:
    """A prompt that was assigned and is not read yet."""

    n_tokens: float
    """To be computed: what is cached is not counted."""
    is_begun: bool = False


class PendingPrefill:
    """What a worker still has to read, and how fast it does."""

    __slots__ = ("_mark", "_pace", "_prompts")

    def __init__(self, pace: Throughput) -> None:
        self._pace = pace
        self._prompts: dict[tuple[int, int], _Reading] = {}
        self._mark = 0.0
        """Since when it reads what nothing has been heard of."""

    def __repr__(self) -> str:
        return f"<PendingPrefill prompts={len(self._prompts)} {self._pace!r}>"

    def assigned(self, lease: tuple[int, int], n_tokens: float) -> None:
        """Count a prompt that was sent."""
        self._prompts[lease] = _Reading(n_tokens)

    def begun(self, lease: tuple[int, int], n_tokens: int, now: float) -> None:
        """Note that a prompt is being read, and what is really to be computed of it."""
        prompt = self._prompts.get(lease)
        if prompt is None:
            return
        if not any(one.is_begun for one in self._prompts.values()):
            self._mark = now
        prompt.n_tokens, prompt.is_begun = n_tokens, True

    def read(self, lease: tuple[int, int], now: float) -> None:
        """Note that a prompt has been read, and how long that took beside the others."""
        prompt = self._prompts.pop(lease, None)
        if prompt is None or not prompt.is_begun or prompt.n_tokens < _MEASURABLE:
            return
        # Of several that end together, the first brings the time and the others their tokens.
        self._pace.reading.add(prompt.n_tokens, now - self._mark)
        self._mark = now

    def dropped(self, lease: tuple[int, int]) -> None:
        """Forget a prompt, read or not."""
        self._prompts.pop(lease, None)

    def wait_s(self, now: float) -> float:
        """Seconds until all that was assigned is read."""
        if not self._prompts:
            return 0.0
        left_s = sum(one.n_tokens for one in self._prompts.values()) / self._pace.reading.value
        is_reading = any(one.is_begun for one in self._prompts.values())
        return max(0.0, left_s - (now - self._mark)) if is_reading else left_s


def slot_wait_s(pace: Throughput, n_slots: int, n_leases: int) -> float:
    """Seconds until one more task would get a slot."""
    return max(0, n_leases - n_slots + 1) * pace.service.value / max(1, n_slots)


def crowding_s(pace: Throughput, n_busy: int) -> float:
    """Seconds by which the streams beside it make an answer longer."""
    return n_busy * _CROWDING * pace.answer.value / pace.writing.value
