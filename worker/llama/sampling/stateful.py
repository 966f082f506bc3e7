"""Samplers whose state does not follow from their tokens, with that state kept here.

llama.cpp has no way to read or set the state of its samplers. So each of these makes a sampler of
llama.cpp for one step from a given state; what changes from token to token (Mirostat's mu,
adaptive-p's sums, the generator) is kept here. The steps are llama.cpp's own (llama-sampler.cpp),
in single precision, so that a seed gives the text of llama-server.
"""

import ctypes
import math
from typing import Any

import llama_cpp.llama_cpp as lib

from protocol.wire.sampling import SamplingParams
from worker.llama.sampling.discrete_distribution import DiscreteDistribution, Weights
from worker.llama.sampling.stages import Dummy, Stage, view

_WINDOW = 100
"""Candidates from which Mirostat 1 estimates the distribution; llama-server's own number."""
_ANY_SEED = 0
"""Seed of samplers whose own choice is not used."""


def single(value: float) -> float:
    """Round to single precision, as llama.cpp's arithmetic does."""
    return ctypes.c_float(value).value


def weights_of(candidates: Any) -> Weights:
    """Copy the probabilities of the candidates."""
    found: Weights = view(candidates)["p"].copy()
    return found


class Mirostat(Stage):
    """Mirostat 1 and 2 (Basu et al., 2020); `mu` is the surprise that is allowed, in bits."""

    def __init__(self, p: SamplingParams, n_vocab: int) -> None:
        self._p = p
        self._n_vocab = n_vocab
        self._tau, self._eta = single(p.mirostat_tau), single(p.mirostat_eta)
        self._mu = single(2 * self._tau)
        self._draws = DiscreteDistribution(p.seed)

    @property
    def state(self) -> tuple[float, float, float]:
        """Draws so far, and mu."""
        return float(self._draws.n), self._mu, 0.0

    def restore(self, n_draws: int, mu: float, _unused: float) -> None:
        """Set the state; must come before the first choice."""
        self._draws.skip(n_draws)
        self._mu = mu

    def apply(self, candidates: Any) -> None:
        """Cut the candidates as a new sampler with this mu does, then choose."""
        tau = self._mu / 2  # a new one begins with twice that as its mu
        if self._p.mirostat == 1:
            n = self._n_vocab
            sampler = lib.llama_sampler_init_mirostat(n, _ANY_SEED, tau, self._eta, _WINDOW)
        else:
            sampler = lib.llama_sampler_init_mirostat_v2(_ANY_SEED, tau, self._eta)
        lib.llama_sampler_apply(sampler, ctypes.byref(candidates))
        lib.llama_sampler_free(sampler)
        weights = weights_of(candidates)
        chosen = candidates.selected = self._draws.choose(weights)
        surprise = single(-math.log2(weights[chosen])) if weights[chosen] > 0 else math.inf
        error = single(surprise - self._tau)
        self._mu = single(self._mu - single(self._eta * error))


class AdaptiveP(Stage):
    """Adaptive-p: keeps the mean probability of the chosen tokens near a target."""

    def __init__(self, p: SamplingParams) -> None:
        self._target, self._decay = single(p.adaptive_target), single(p.adaptive_decay)
        rest = single(1 - self._decay)
        self._sum, self._weight = single(self._target / rest), single(1 / rest)
        self._draws = DiscreteDistribution(p.seed)
        self._chosen = -1
        self._p = 0.0
        """Probability of the chosen token before the transformation."""
        self._plain = lib.llama_sampler_init_adaptive_p(-1.0, 0.0, _ANY_SEED)
        """Computes the probabilities and changes nothing."""

    @property
    def state(self) -> tuple[float, float, float]:
        """Draws so far, and the two sums of the mean."""
        return float(self._draws.n), self._sum, self._weight

    def restore(self, n_draws: int, total: float, weight: float) -> None:
        """Set the state; must come before the first choice."""
        self._draws.skip(n_draws)
        self._sum, self._weight = total, weight

    def apply(self, candidates: Any) -> None:
        """Transform the candidates as a new sampler with this target does, then choose."""
        lib.llama_sampler_apply(self._plain, ctypes.byref(candidates))
        before = weights_of(candidates)
        if self._target < 0:
            candidates.selected = self._draws.choose(before)
            return
        # Without a decay a new one aims at just the target that it is given.
        sampler = lib.llama_sampler_init_adaptive_p(self._aim(), 0.0, _ANY_SEED)
        lib.llama_sampler_apply(sampler, ctypes.byref(candidates))
        lib.llama_sampler_free(sampler)
        chosen = candidates.selected = self._draws.choose(weights_of(candidates))
        self._chosen, self._p = int(view(candidates)["id"][chosen]), float(before[chosen])

    def _aim(self) -> float:
        target = min(self._target, 1.0)
        if self._weight:
            target = single(single(2 * target) - single(self._sum / self._weight))
        return max(0.0, min(target, 1.0))

    def accept(self, token: int) -> None:
        """Count the probability of a token that was chosen."""
        if token == self._chosen:
            self._sum = single(self._p + single(self._decay * self._sum))
            self._weight = single(1 + single(self._decay * self._weight))
        self._chosen = -1

    def free(self) -> None:
        """Free what computes the probabilities."""
        if self._plain is not None:
            lib.llama_sampler_free(self._plain)
            self._plain = None


class Xtc(Stage):
    """XTC with its draws counted: it draws nothing among fewer than two candidates."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.n = 0
        """Draws so far."""

    def skip(self, n: int) -> None:
        """Draw `n` numbers and drop them."""
        unused = Dummy(2)
        for _ in range(n):
            lib.llama_sampler_apply(self._sampler, unused.fresh())
        self.n += n

    def apply(self, candidates: Any) -> None:
        """Drop the likeliest tokens, or keep them, by chance."""
        self.n += candidates.size >= 2
        lib.llama_sampler_apply(self._sampler, ctypes.byref(candidates))

    def free(self) -> None:
        """Free the sampler."""
        if self._sampler is not None:
            lib.llama_sampler_free(self._sampler)
            self._sampler = None
