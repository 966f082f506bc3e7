"""The samplers whose state is ours choose what llama.cpp's own choose, and can be taken over."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from protocol.errors import InvalidRequest
from protocol.wire.sampling import SamplingParams
from worker.llama.sampling.chain import Chain
from worker.llama.sampling.hidden_state import HiddenState, ended_at
from worker.llama.sampling.stages import Candidates
from worker.llama.sampling.stateful import AdaptiveP, Mirostat, Xtc

N_VOCAB = 500
N = 200
Whole = Callable[[SamplingParams], Any]

PAIRS: dict[str, tuple[dict[str, Any], Whole, Whole]] = {
    "mirostat 1": (
        {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
        lambda p: Mirostat(p, N_VOCAB),
        lambda p: lib.llama_sampler_init_mirostat(N_VOCAB, p.seed, 3.0, 0.2, 100),
    ),
    "mirostat 2": (
        {"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.3},
        lambda p: Mirostat(p, N_VOCAB),
        lambda p: lib.llama_sampler_init_mirostat_v2(p.seed, 2.0, 0.3),
    ),
    "mirostat 2, often one candidate": (
        {"mirostat": 2, "mirostat_tau": 0.3, "mirostat_eta": 0.9},
        lambda p: Mirostat(p, N_VOCAB),
        lambda p: lib.llama_sampler_init_mirostat_v2(p.seed, 0.3, 0.9),
    ),
    "adaptive-p": (
        {"adaptive_target": 0.4, "adaptive_decay": 0.9},
        AdaptiveP,
        lambda p: lib.llama_sampler_init_adaptive_p(0.4, 0.9, p.seed),
    ),
    "adaptive-p without memory": (
        {"adaptive_target": 0.7, "adaptive_decay": 0.0},
        AdaptiveP,
        lambda p: lib.llama_sampler_init_adaptive_p(0.7, 0.0, p.seed),
    ),
    "adaptive-p that is off": (
        {"adaptive_target": -1.0},
        AdaptiveP,
        lambda p: lib.llama_sampler_init_adaptive_p(-1.0, 0.9, p.seed),
    ),
    "xtc": (
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        lambda p: Both(
            Xtc(lib.llama_sampler_init_xtc(0.5, 0.05, 0, p.seed)), lib.llama_sampler_init_dist(1)
        ),
        lambda p: lib.llama_sampler_init_xtc(0.5, 0.05, 0, p.seed),
    ),
}


class Both:
    """XTC, and a choice after it, which leaves the same candidates."""

    def __init__(self, first: Xtc, last: Any) -> None:
        self.parts: list[Chain | Xtc] = [first, Chain([last])]
        self.state: tuple[float, ...] = ()

    def apply(self, candidates: Any) -> None:
        """Apply both."""
        for part in self.parts:
            part.apply(candidates)

    def accept(self, token: int) -> None:
        """Accept in both."""
        for part in self.parts:
            part.accept(token)


@cache
def logits(i: int, scale: float) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """The logits of the i-th token."""
    return (np.random.default_rng(i).standard_normal(N_VOCAB) * scale).astype(np.float32)


def params_of(fields: dict[str, Any], seed: int = 11) -> SamplingParams:
    return SamplingParams(**({"seed": seed} | fields))


def parts_of(made: Any) -> list[Any]:
    return made.parts if isinstance(made, Both) else [made]


def choose(parts: list[Any], candidates: Candidates, i: int, scale: float) -> int:
    """Choose the i-th token."""
    candidates.fill(logits(i, scale))
    raw = candidates.raw
    if i % 7 == 0:
        raw.size = 1 + i % 2  # few are left
    for part in parts:
        part.apply(raw)
    token = candidates.selected()
    for part in parts:
        part.accept(token)
    return token


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("scale", [1.0, 4.0, 15.0])
@pytest.mark.parametrize("seed", [0, 11, 2**32 - 2])
def test_they_choose_what_llama_cpps_own_choose(name: str, scale: float, seed: int) -> None:
    fields, ours, theirs = PAIRS[name]
    p = params_of(fields, seed)
    mine = parts_of(ours(p))
    chain = [theirs(p)] if name != "xtc" else [theirs(p), lib.llama_sampler_init_dist(1)]
    other = [Chain(chain)]
    candidates = Candidates(N_VOCAB)
    for i in range(1, N):
        assert choose(mine, candidates, i, scale) == choose(other, candidates, i, scale), i


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("cut", [1, 7, 50, N - 2])
def test_another_one_goes_on_with_the_state(name: str, cut: int) -> None:
    fields, ours, _ = PAIRS[name]
    p, candidates = params_of(fields), Candidates(N_VOCAB)
    whole = parts_of(ours(p))
    told = HiddenState(whole, draws=name == "xtc")
    tokens: list[int] = []
    state: tuple[float, ...] = ()
    for i in range(1, N):
        tokens.append(choose(whole, candidates, i, 4.0))
        if i == cut:
            state = told.current(())
    again = parts_of(ours(p))
    for token in tokens[:cut]:
        for part in again:
            part.accept(token)
    HiddenState(again, draws=name == "xtc").restore(cut, state)
    assert [choose(again, candidates, i, 4.0) for i in range(cut + 1, N)] == tokens[cut:]


def test_dist_draws_once_for_each_choice_and_once_more_where_a_grammar_refused() -> None:
    candidates = Candidates(N_VOCAB)
    whole, hidden = Chain([lib.llama_sampler_init_dist(5)]), None
    hidden = HiddenState([whole], draws=True)
    tokens = []
    for i in range(1, 40):
        if i % 5 == 0:
            choose([whole], candidates, i, 4.0)
            hidden.refused()
        tokens.append(choose([whole], candidates, i, 4.0))
        if i == 20:
            state = hidden.current(())
    assert state == (4.0, 0.0, 0.0, 0.0, 0.0)
    again = Chain([lib.llama_sampler_init_dist(5)])
    HiddenState([again], draws=True).restore(20, state)
    found = []
    for i in range(21, 40):
        if i % 5 == 0:
            choose([again], candidates, i, 4.0)
        found.append(choose([again], candidates, i, 4.0))
    assert found == tokens[20:]


@pytest.mark.parametrize(
    "state",
    [
        (1.0,),
        (-1.0, 0.0, 0.0, 0.0, 0.0),
        (0.0, 0.5, 0.0, 0.0, 0.0),
        (0.0, 0.0, 1e9, 0.0, 0.0),
        (float("inf"), 0.0, 0.0, 0.0, 0.0),
        (float("nan"), 0.0, 0.0, 0.0, 0.0),
        (0.0, 0.0, 0.0, 0.0, 0.0, 99.0),
    ],
)
def test_a_state_that_no_sampler_had_is_refused(state: tuple[float, ...]) -> None:
    with pytest.raises(InvalidRequest, match="state") as refused:
        ended_at(state, 10)
    assert refused.value.param == "partial_answer.sampler_state"


def test_extreme_parameters_do_no_harm() -> None:
    candidates = Candidates(N_VOCAB)
    for fields in (
        {"mirostat": 2, "mirostat_tau": 3e38, "mirostat_eta": 3e38},
        {"mirostat": 1, "mirostat_tau": -3e38, "mirostat_eta": -3e38},
        {"mirostat": 2, "mirostat_tau": -5.0, "mirostat_eta": 1e-30},
    ):
        p = params_of(fields)
        sampler = Mirostat(p, N_VOCAB)
        for i in range(1, 20):
            assert 0 <= choose([sampler], candidates, i, 4.0) < N_VOCAB
    assert ctypes.c_float(3e39).value == float("inf")
