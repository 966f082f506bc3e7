"""How many prompt tokens the next step may read, from the measured speed of earlier steps. Pure."""

from dataclasses import dataclass

FIRST_CHUNK = 64
"""Prompt tokens of a step before any speed is known. Source: four times `MIN_CHUNK`, so that the
first measurement is not of a tiny batch."""
MIN_CHUNK = 16
"""Minimum number of prompt tokens of a step. Source: smaller batches use a device so badly that a
prompt would take longer in total."""
WEIGHT = 0.3
"""Share of a new measurement in a moving average, without unit. Source: a change of speed is known
to 97 % after ten steps, and one slow step does not halve the next chunk."""


@dataclass(slots=True)
class StepBudget:
    """Turns a time limit for a step into a number of prompt tokens.

    A short step takes no longer than `target_s`, which bounds the gap between two tokens of a
    stream. Any other may take `idle_target_s`, which bounds how long a cancel or a new task waits.
    All times are in seconds.
    """

    target_s: float
    n_batch: int
    token_s: float = 0.0
    """Time to read one prompt token, a moving average; 0 if unknown."""
    idle_target_s: float = 0.5
    """Seconds. Source: a person waits that long for the effect of a cancel without noticing."""
    decode_s: float = 0.0
    """Time of a step that only decodes, a moving average over steps of `n_rows` rows."""
    n_rows: int = 0
    copying_s: float = 0.0
    """Time that copies have taken from the step that is planned."""

    def tokens(self, n_decoding: int, *, is_short: bool = True) -> int:
        """Return how many prompt tokens to read beside `n_decoding` rows."""
        room = self.n_batch - n_decoding
        if self.token_s <= 0.0:
            return min(room, FIRST_CHUNK)
        spare_s = self.spare_s(n_decoding, is_short=is_short)
        return min(room, max(MIN_CHUNK, int(min(spare_s / self.token_s, room))))

    def spare_s(self, n_decoding: int, *, is_short: bool = True) -> float:
        """Return the time that a step has beside `n_decoding` rows and its copies."""
        limit_s = self.target_s if n_decoding and is_short else self.idle_target_s
        return max(0.0, limit_s - self.predict(n_decoding) - self.copying_s)

    def predict(self, n_decoding: int) -> float:
        """Return what decoding `n_decoding` rows takes at most.

        Fewer rows than last take as long, because all weights are read anyway; more take longer
        in proportion at worst.
        """
        if not n_decoding or not self.n_rows:
            return 0.0
        return self.decode_s * max(1.0, n_decoding / self.n_rows)

    def observe(self, n_decoding: int, n_prompt: int, elapsed_s: float) -> None:
        """Learn from a step that took `elapsed_s`."""
        if n_prompt == 0:
            same = n_decoding == self.n_rows
            self.decode_s = _average(self.decode_s if same else 0.0, elapsed_s)
            self.n_rows = n_decoding
        elif n_prompt >= MIN_CHUNK // 2:
            self._correct(self.predict(n_decoding), n_prompt, elapsed_s)

    def _correct(self, decode_s: float, n_prompt: int, elapsed_s: float) -> None:
        """Learn from a step with a prompt beside rows that were expected to take `decode_s`.

        How much of it each part took is not known, so both are corrected in proportion: while
        prompts follow one another there is no step that shows one of them alone, and a time
        learnt beside a busy neighbour would stay.
        """
        if decode_s and self.token_s > 0.0:
            share = elapsed_s / (decode_s + n_prompt * self.token_s)
            self.token_s = _average(self.token_s, self.token_s * share)
            self.decode_s = _average(self.decode_s, self.decode_s * share)
        elif (spent_s := elapsed_s - decode_s) > 0.0:
            self.token_s = _average(self.token_s, spent_s / n_prompt)


def _average(known: float, value: float) -> float:
    return value if known <= 0.0 else known + WEIGHT * (value - known)
