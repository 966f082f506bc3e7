"""Seconds that a task would wait for its first token at a worker, from what was measured there.

Pure arithmetic over the gateway's own clock: when a task was assigned, when the worker began to
read its prompt (`Started`) and when it had read it (the first delta). Seconds compare workers of
any speed, so no ratio between cached tokens and busy slots has to be guessed. The constants are
assumptions that hold until a worker of the model has been measured.
"""

from gateway.pool.tasks.task import Task

_DECAY = 0.9
"""Weight of all older observations with each new one: the mean is over the last ten or so."""
_ASSUMED_PROMPT_PER_S = 500.0
_ASSUMED_ANSWER_PER_S = 50.0
_ASSUMED_ANSWER_TOKENS = 128.0
_ASSUMED_SERVICE_S = 1.0
"""Tokens a second, tokens and seconds of a model that no worker has shown yet."""
_SLOWDOWN_PER_STREAM = 0.02
"""Share by which each running stream is assumed to slow down the others of its worker."""
_MIN_MEASURED_TOKENS = 32
"""Reading fewer tokens takes one step, whatever their number, and shows no speed."""


class Ratio:
    """A decaying mean, as one sum over another; with few observations it is near to its prior."""

    def __init__(self, prior: "float | Ratio", weight: float) -> None:
        """`prior` is a number, or a mean that several share and whose prior is a number."""
        self._shared = prior if isinstance(prior, Ratio) else None
        assert self._shared is None or self._shared._shared is None
        self._assumed = self._mean = prior.value if isinstance(prior, Ratio) else prior
        """The number, and the mean of one without a shared prior: it changes with `add` alone."""
        self._weight = weight
        """Weight of the prior, in units of the divisor; it does not decay."""
        self._over = 0.0
        self._under = 0.0

    def __repr__(self) -> str:
        return f"<Ratio {self.value:g}>"

    @property
    def value(self) -> float:
        """The mean."""
        shared, weight = self._shared, self._weight
        if shared is None:
            return self._mean
        return (self._over + weight * shared._mean) / (self._under + weight)

    @property
    def is_measured(self) -> bool:
        """Whether anything was observed."""
        return self._under > 0

    def add(self, over: float, under: float) -> None:
        """Count an observation, here and in the prior that is shared with others."""
        self._over = _DECAY * self._over + over
        self._under = _DECAY * self._under + under
        if self._shared is None:
            total = self._over + self._weight * self._assumed
            self._mean = total / (self._under + self._weight)
        else:
            self._shared.add(over, under)


class Throughput:
    """Measurements of one worker; until it has its own, those of the model's other workers count.

    `model` collects the observations of all workers of the model and has none itself.
    """

    def __init__(self, model: "Throughput | None" = None) -> None:
        # The first observation must count for the other workers as much as for its own.
        weight = 1.0 if model else 0.1

        def ratio(name: str, assumed: float, n: float) -> Ratio:
            return Ratio(getattr(model, name) if model else assumed, n * weight)

        self.prompt_per_s = ratio("prompt_per_s", _ASSUMED_PROMPT_PER_S, 0.05)
        """Prompt tokens a second, of all slots together."""
        self.answer_per_s = ratio("answer_per_s", _ASSUMED_ANSWER_PER_S, 0.5)
        """Tokens a second of one stream."""
        self.answer_tokens = ratio("answer_tokens", _ASSUMED_ANSWER_TOKENS, 1.0)
        """Tokens of an answer."""
        self.service_s = ratio("service_s", _ASSUMED_SERVICE_S, 1.0)
        """Seconds for which a task has a slot."""
        self.length_ratio = ratio("length_ratio", 1.0, 64.0)
        """Tokens of a prompt over those that were guessed from its text."""
        self.hit_ratio = ratio("hit_ratio", 1.0, 256.0)
        """Tokens that were found in the cache over those that should have been there."""

    def __repr__(self) -> str:
        prompt, answer = self.prompt_per_s.value, self.answer_per_s.value
        return f"<Throughput prompt={prompt:.0f}/s answer={answer:.0f}/s>"


class PendingPrefill:
    """Prompt tokens that a worker has still to compute; each task's share is its `n_unread`."""

    def __init__(self, throughput: Throughput) -> None:
        self._throughput = throughput
        self.n_prompts = 0
        self._n_reading = 0
        """Prompts that the worker has started to read."""
        self._n_tokens = 0.0
        self._since = 0.0
        """When it began with what it reads now."""

    def __repr__(self) -> str:
        return f"<PendingPrefill prompts={self.n_prompts} {self._throughput!r}>"

    def assigned(self, task: Task, n_tokens: float) -> None:
        """Count the tokens to compute of a task that goes to the worker."""
        task.n_unread = n_tokens
        self.n_prompts += 1
        self._n_tokens += n_tokens

    def started(self, task: Task, now: float) -> None:
        """Correct them as the worker begins with the prompt."""
        if task.n_unread is None:
            return
        if not self._n_reading:
            self._since = now
        n_tokens = max(0.0, float(task.n_prompt + task.n_resumed - task.n_cached))
        self._n_tokens += n_tokens - task.n_unread
        self._n_reading += 1
        task.n_unread = n_tokens

    def read(self, task: Task, now: float) -> None:
        """Note that a prompt has been read, and how long that took beside the others."""
        n_tokens = task.n_unread
        self.dropped(task)
        if n_tokens is None or not task.has_started or n_tokens < _MIN_MEASURED_TOKENS:
            return
        # Of several that end together, the first brings the time and the others their tokens.
        self._throughput.prompt_per_s.add(n_tokens, now - self._since)
        self._since = now

    def dropped(self, task: Task) -> None:
        """Forget a prompt, read or not."""
        if task.n_unread is None:
            return
        self.n_prompts -= 1
        self._n_reading -= task.has_started
        # Nothing is left of rounding errors when there is nothing left to read.
        self._n_tokens = self._n_tokens - task.n_unread if self.n_prompts else 0.0
        task.n_unread = None

    def wait_s(self, now: float) -> float:
        """Seconds until everything that was assigned is read."""
        if not self.n_prompts:
            return 0.0
        left_s = self._n_tokens / self._throughput.prompt_per_s.value
        return max(0.0, left_s - (now - self._since)) if self._n_reading else left_s


def slot_wait_s(throughput: Throughput, n_slots: int, n_taken: int) -> float:
    """Seconds until one more task would get a slot."""
    n_before = n_taken - n_slots + 1
    if n_before <= 0:
        return 0.0
    return n_before * throughput.service_s.value / max(1, n_slots)


def crowding_s(throughput: Throughput, n_busy: int) -> float:
    """Seconds by which the worker's running streams make an answer longer."""
    if not n_busy:
        return 0.0
    answer_s = throughput.answer_tokens.value / throughput.answer_per_s.value
    return n_busy * _SLOWDOWN_PER_STREAM * answer_s
