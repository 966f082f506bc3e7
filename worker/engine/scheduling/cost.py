"""What a step costs on this machine, learnt from the steps themselves. Pure.

A step without prompts takes `fixed + rows * (row + cells * cell)`: every decoding row goes through
the weights once, and attends to every cell in use. The three are fitted by recursive least squares
with forgetting (Haykin, Adaptive Filter Theory, ch. 10), so that a machine that others use too, or
a model that was swapped in, is learnt anew within some hundred steps.
"""

import math
from dataclasses import dataclass, field

_FORGET = 0.995
_ROWS, _CELLS = 8.0, 65536.0
"""Scales that bring the regressors to about 1."""
_UNKNOWN = 1e3
_HICCUP = 4.0
"""A step that took so many times as long as expected tells nothing of the rest."""
_DOUBT = 1.5
"""So much more than in proportion, or less, other rows are believed to take."""
_LATELY = 0.5
"""How much of the average the last step is."""
_N_LEARNT = 100
_FOREIGN = 4.0
"""A cell's price may be so many times off what is assumed: a drift of the machine is no price."""


@dataclass(slots=True)
class DecodeCost:
    """Predicts the time of a step that reads no prompt, in seconds."""

    weights: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    n_steps: int = 0
    last_rows: int = 0
    last_s: float = 0.0
    """What the last steps of so many rows took: a moving average."""
    _spread: list[list[float]] = field(
        default_factory=lambda: [[_UNKNOWN * (i == j) for j in range(3)] for i in range(3)]
    )
    _noise: float = 0.0

    def price_s(self, assumed_s: float) -> float:
        """Return what a cell in use costs each row: as assumed, unless the steps contradict.

        Among few rows the price is smaller than the noise for thousands of steps. What is not
        known does not say that it is nothing.
        """
        slope = self.weights[2] / _CELLS
        doubt = 3.0 * math.sqrt(max(0.0, self._noise * self._spread[2][2])) / _CELLS
        if self.n_steps < _N_LEARNT:
            found = assumed_s
        elif slope > doubt:
            found = slope
        else:
            found = min(assumed_s, max(0.0, slope + doubt))
        return min(max(found, assumed_s / _FOREIGN), assumed_s * _FOREIGN) if assumed_s else found

    def predict(self, n_rows: int, n_cells: int) -> float:
        """Return the expected time; 0 before anything is known.

        As many rows as last take as long. A fit knows little of numbers of rows that did not come
        lately, and nothing of the first that come. It is not believed where fewer rows should take
        longer than the last, or more rows less: then the time goes with the rows.
        """
        if n_rows == self.last_rows:
            return self.last_s
        expected = max(0.0, _dot(self.weights, _regressors(n_rows, n_cells)))
        if not self.last_rows:
            return expected
        ratio = n_rows / self.last_rows
        least, most = (ratio / _DOUBT, 1.0) if ratio < 1.0 else (1.0, ratio * _DOUBT)
        is_likely = self.last_s * least <= expected <= self.last_s * most
        return expected if is_likely else self.last_s * ratio

    def note(self, n_rows: int, elapsed_s: float) -> None:
        """Remember the last step, learnt from or not."""
        if n_rows == self.last_rows:
            elapsed_s = min(elapsed_s, _HICCUP * self.last_s)
            self.last_s += _LATELY * (elapsed_s - self.last_s)
        else:
            self.last_rows, self.last_s = n_rows, elapsed_s

    def observe(self, n_rows: int, n_cells: int, elapsed_s: float) -> None:
        """Learn from one step."""
        x = _regressors(n_rows, n_cells)
        expected = _dot(self.weights, x)
        if self.n_steps > _N_LEARNT:
            elapsed_s = min(elapsed_s, _HICCUP * max(expected, 1e-4))
        error = elapsed_s - expected
        px = [_dot(row, x) for row in self._spread]
        gain = 1.0 / (_FORGET + _dot(x, px))
        self.weights = [w + error * gain * p for w, p in zip(self.weights, px, strict=True)]
        self._spread = [
            [
                min(_UNKNOWN, (s - gain * px[i] * px[j]) / _FORGET)
                for j, s in enumerate(self._spread[i])
            ]
            for i in range(3)
        ]
        self.n_steps += 1
        self._noise += (error * error - self._noise) * max(0.02, 1.0 / self.n_steps)


def _regressors(n_rows: int, n_cells: int) -> list[float]:
    return [1.0, n_rows / _ROWS, n_rows * n_cells / _CELLS]


def _dot(a: list[float], b: list[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
