"""llama.cpp's random numbers, for a generator that must start after the n-th draw.

llama.cpp's samplers draw from a `std::mt19937` that cannot be read or set. The number of draws does
not follow from the tokens: neither `std::discrete_distribution` nor XTC draws for one candidate.
"""

import math

import numpy as np

Weights = np.ndarray[tuple[int], np.dtype[np.float32]]
_BYTES = 8
"""A draw of a double takes two numbers of 32 bits."""


class DiscreteDistribution:
    """`std::discrete_distribution` over `std::mt19937`, as libstdc++ has them, bit for bit."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.RandomState(seed)
        self.n = 0
        """Number of draws so far."""

    def choose(self, weights: Weights) -> int:
        """Draw an index in proportion to the weights."""
        if len(weights) < 2:
            return 0
        weighted = weights.astype(np.float64)
        bounds = np.cumsum(weighted / np.cumsum(weighted)[-1])
        bounds[-1] = 1.0
        self.n += 1
        return int(np.searchsorted(bounds, self.unit()))

    def skip(self, n: int) -> None:
        """Draw `n` numbers and drop them."""
        if n:  # no bytes at all take a number of the generator, too
            self._generator.bytes(_BYTES * n)
        self.n += n

    def unit(self) -> float:
        """`std::generate_canonical<double, 53>`: at least 0, less than 1."""
        number = int.from_bytes(self._generator.bytes(_BYTES), "little") / 2**64
        return number if number < 1.0 else math.nextafter(1.0, 0.0)
