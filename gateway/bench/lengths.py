"""Lengths of prompts and answers: distributions, their notation, and drawing from them."""

import math
from dataclasses import dataclass
from random import Random

LONGEST = 1_000_000
"""Maximum length of a prompt or an answer, in tokens."""
_WIDEST = 10.0
"""Maximum sigma of a log-normal distribution."""
SYNTAX = "N, uniform:LOW-HIGH, lognormal:MEDIAN,SIGMA[,MAX] or sharegpt"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths between two bounds; with a sigma, log-normal around a median."""

    low: int
    high: int
    median: float = 0.0
    sigma: float = 0.0

    def draw(self, rng: Random) -> int:
        """Return one length."""
        if self.sigma:
            drawn = rng.lognormvariate(math.log(self.median), self.sigma)
            return round(min(max(drawn, self.low), self.high))
        return rng.randint(self.low, self.high) if self.low < self.high else self.low


# Fitted to the quantiles of ShareGPT's conversations (p50 and p90: prompts 36 and 726, replies 279
# and 629 tokens), with the bounds that llama.cpp's and vLLM's benchmarks filter it by.
SHAREGPT_PROMPT = Lengths(4, 1024, 36.0, 2.35)
SHAREGPT_REPLY = Lengths(4, 1024, 279.0, 0.63)


def parse(text: str, sharegpt: Lengths = SHAREGPT_PROMPT) -> Lengths:
    """Read a distribution; raises `ValueError` with the valid forms."""
    kind, _, rest = text.strip().partition(":")
    try:
        if kind == "sharegpt" and not rest:
            return sharegpt
        if kind == "uniform":
            low, high = rest.split("-")
            return _checked(Lengths(int(low), int(high)))
        if kind == "lognormal":
            median, sigma, *limit = rest.split(",")
            return _log_normal(float(median), float(sigma), int(limit[0]) if limit else LONGEST)
        if kind == "fixed":
            kind = rest
        return _checked(Lengths(int(kind), int(kind)))
    except ValueError:
        raise ValueError(f"'{text}' is no length; valid are {SYNTAX}") from None


def _checked(lengths: Lengths) -> Lengths:
    if not 0 < lengths.low <= lengths.high <= LONGEST:
        raise ValueError
    return lengths


def _log_normal(median: float, sigma: float, high: int) -> Lengths:
    if not (1 <= median <= LONGEST and 0 < sigma <= _WIDEST):
        raise ValueError
    return _checked(Lengths(1, high, median, sigma))
