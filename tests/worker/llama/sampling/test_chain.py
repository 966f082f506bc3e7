"""From a request's parameters to llama.cpp's samplers: which, in which order, with which values.

llama.cpp's samplers are not made; what their constructors would have got is looked at. What they
do to a text is told by test_llama.py.
"""

import ctypes
import math
from types import SimpleNamespace
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from protocol.errors import InvalidRequest
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read
from worker.llama.sampling.chain import Chain, SamplerModel, build, resolve_biases
from worker.llama.sampling.probabilities import final_prob
from worker.llama.sampling.sampler import open_sampler
from worker.llama.sampling.stages import Candidates, InfillEnding, TailFree, likeliest, view
from worker.llama.sampling.stateful import Mirostat

N_CTX = 512
N_VOCAB = 100


class Made:
    """Stands for llama.cpp's samplers; remembers what was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.accepted: list[int] = []
        for name in dir(lib):
            if name.startswith("llama_sampler_init_"):
                monkeypatch.setattr(lib, name, self._init(name.removeprefix("llama_sampler_init_")))
        monkeypatch.setattr(lib, "llama_sampler_chain_init", lambda _params: object())
        monkeypatch.setattr(lib, "llama_sampler_chain_add", lambda _chain, _sampler: None)
        monkeypatch.setattr(lib, "llama_sampler_free", lambda _chain: None)
        monkeypatch.setattr(
            lib, "llama_sampler_accept", lambda _chain, token: self.accepted.append(token)
        )

    def _init(self, name: str) -> Any:
        def init(*args: Any) -> object:
            self.calls.append((name, tuple(_plain(arg) for arg in args)))
            return object()

        return init

    def order(self) -> list[str]:
        """The samplers in the order in which they were made, which is that of the chain."""
        return [name for name, _ in self.calls]

    def args(self, name: str) -> tuple[Any, ...]:
        """The arguments of the only sampler of a name."""
        (found,) = [args for one, args in self.calls if one == name]
        return found


def _plain(arg: Any) -> Any:
    return list(arg) if isinstance(arg, ctypes.Array) else arg


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def model() -> SamplerModel:
    vocabulary: Any = SimpleNamespace(
        n_tokens=N_VOCAB,
        handle=None,
        suppressed=list,
        newline=lambda: 10,
        tokenize=lambda text, **_: list(text.encode()),
    )
    return SamplerModel(vocabulary=vocabulary, eog=[2, 3], n_ctx=N_CTX)


def params_of(**fields: Any) -> SamplingParams:
    return read(SamplingParams(), {"temperature": 0.8, **fields})


@pytest.mark.parametrize(
    ("fields", "name", "index", "value"),
    [
        ({"repeat_last_n": 32}, "penalties", 1, 32),
        ({"repeat_last_n": -1}, "penalties", 1, N_CTX),
        ({"repeat_penalty": 1.3}, "penalties", 2, 1.3),
        ({"frequency_penalty": 0.4}, "penalties", 3, 0.4),
        ({"presence_penalty": 0.6}, "penalties", 4, 0.6),
        ({"dry_multiplier": 0.8}, "dry", 1, 0.8),
        ({"dry_base": 2.5}, "dry", 2, 2.5),
        ({"dry_allowed_length": 4}, "dry", 3, 4),
        ({"dry_penalty_last_n": 9}, "dry", 4, 9),
        ({"dry_penalty_last_n": -1}, "dry", 4, N_CTX),
        ({"dry_sequence_breakers": ["a", "é"]}, "dry", 5, [b"a", "é".encode()]),
        ({"top_n_sigma": 1.5}, "top_n_sigma", 0, 1.5),
        ({"top_k": 7}, "top_k", 0, 7),
        ({"typical_p": 0.7}, "typical", 0, 0.7),
        ({"top_p": 0.6}, "top_p", 0, 0.6),
        ({"min_p": 0.2}, "min_p", 0, 0.2),
        ({"min_keep": 5}, "typical", 1, 5),
        ({"min_keep": 5}, "top_p", 1, 5),
        ({"min_keep": 5}, "min_p", 1, 5),
        ({"min_keep": 5}, "xtc", 2, 5),
        ({"xtc_probability": 0.5}, "xtc", 0, 0.5),
        ({"xtc_threshold": 0.3}, "xtc", 1, 0.3),
        ({"temperature": 1.7}, "temp_ext", 0, 1.7),
        ({"dynatemp_range": 0.4}, "temp_ext", 1, 0.4),
        ({"dynatemp_exponent": 2.0}, "temp_ext", 2, 2.0),
        ({"seed": 42}, "dist", 0, 42),
        ({"repeat_last_n": 2147483647, "repeat_penalty": 1.1}, "penalties", 1, N_CTX),
        ({"dry_penalty_last_n": 2147483647, "dry_multiplier": 0.5}, "dry", 4, N_CTX),
    ],
    ids=str,
)
def test_a_field_is_an_argument_of_its_sampler(
    made: Made, fields: dict[str, Any], name: str, index: int, value: object
) -> None:
    build(params_of(**fields), (), model())
    assert made.args(name)[index] == value


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_takes_the_place_of_the_chain(made: Made, version: int) -> None:
    """What it does with its fields: test_stateful.py."""
    chain, chooser = build(params_of(mirostat=version, seed=7, top_k=3), (), model())
    assert isinstance(chain, Chain) and isinstance(chooser, Mirostat)
    assert made.order() == ["temp"]


@pytest.mark.parametrize(
    ("samplers", "order"),
    [
        (["min_p", "top_k"], ["min_p", "top_k", "dist"]),
        ("tk", ["temp_ext", "top_k", "dist"]),
        ("top_k", ["top_k", "dist"]),
        (["penalties", "dry", "typ_p"], ["penalties", "dry", "typical", "dist"]),
        ([], ["dist"]),
    ],
    ids=str,
)
def test_samplers_run_in_the_order_that_was_asked_for(
    made: Made, samplers: Any, order: list[str]
) -> None:
    build(params_of(samplers=samplers), (), model())
    assert made.order() == order


def test_a_target_of_adaptive_p_alone_changes_nothing(made: Made) -> None:
    build(params_of(adaptive_target=0.5), (), model())
    assert "adaptive_p" not in made.order() and made.order()[-1] == "dist"


def test_each_sampler_is_in_a_chain_once(made: Made) -> None:
    """Fault H5: ten thousand entries took minutes on the engine's thread."""
    build(params_of(samplers=["top_k", "temperature"] * 5000), (), model())
    assert made.order() == ["top_k", "temp_ext", "dist"]


def test_breakers_are_bounded(made: Made) -> None:
    """llama.cpp goes through the vocabulary for each of them."""
    alike = ["x" * 40 + str(i) for i in range(100)]
    build(params_of(dry_multiplier=0.5, dry_sequence_breakers=alike), (), model())
    assert made.args("dry")[6] == 1
    different = [str(i) for i in range(100)]
    made.calls.clear()
    with pytest.raises(InvalidRequest, match="dry_sequence_breakers"):
        build(params_of(dry_multiplier=0.5, dry_sequence_breakers=different), (), model())
    assert made.order() == []  # nothing would free them


def test_the_tail_is_cut_behind_top_k(made: Made) -> None:
    parts = build(params_of(tfs_z=0.5, min_keep=3), (), model())
    assert [type(part).__name__ for part in parts] == ["Chain", "TailFree", "Chain"]
    assert made.order()[made.order().index("top_k") + 1] == "typical"


def test_of_a_tail_as_many_are_left_as_must_be_kept() -> None:
    logits = np.array([2.0, 3.0, 2.8, 2.5, 1.0, 0.5, 0.0, -2.0], np.float32)
    sizes = {}
    for z, min_keep in ((0.2, 1), (0.95, 1), (0.2, 6), (1.0, 1)):
        raw = Candidates(len(logits)).fill(logits)
        TailFree(z, min_keep).apply(raw)
        sizes[z, min_keep] = len(view(raw))
    assert sizes[0.2, 1] < sizes[0.95, 1] < sizes[1.0, 1]
    assert sizes[0.2, 6] == 6


@pytest.mark.parametrize("n", [0, 1, 7, 40, 99, 100, 200])
def test_the_likeliest_are_those_of_a_stable_sort(n: int) -> None:
    values = np.random.default_rng(n).integers(0, 12, N_VOCAB).astype(np.float32)
    values[:20] = -np.inf
    assert likeliest(values, n).tolist() == np.argsort(-values, kind="stable")[:n].tolist()


def test_only_what_is_left_of_a_tail_is_put_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """To sort all candidates as records took 140 ms of each token with 262,144 of them."""
    n_sorted: list[int] = []
    argsort, sort = np.argsort, np.sort

    def counted_argsort(values: Any, **options: Any) -> Any:
        n_sorted.append(len(values))
        return argsort(values, **options)

    def plain_sort(values: Any) -> Any:
        assert values.dtype.names is None
        return sort(values)

    logits = np.random.default_rng(1).normal(size=5000).astype(np.float32)
    candidates = Candidates(len(logits))
    raw = candidates.fill(logits)
    monkeypatch.setattr(np, "argsort", counted_argsort)
    monkeypatch.setattr(np, "sort", plain_sort)
    TailFree(0.9, 0).apply(raw)
    final_prob(7, raw, 3, [b""] * len(logits))
    left = view(raw)["id"].tolist()
    assert left == argsort(-logits)[: len(left)].tolist()
    assert n_sorted == [len(left), 3]


@pytest.mark.parametrize("temperature", [0, -1])
def test_a_dynamic_temperature_is_no_greedy_choice(made: Made, temperature: float) -> None:
    build(params_of(temperature=temperature, dynatemp_range=1), (), model())
    assert made.args("temp_ext") == (0, 1, 1)
    assert "greedy" not in made.order()


@pytest.mark.parametrize(("n_vocab", "n_left"), [(257, 257), (1000, 1)])
def test_infill_ends_a_text_by_the_number_of_all_candidates(n_vocab: int, n_left: int) -> None:
    """An end with a fifth of the probability of each of 256 tokens, beside unlikely ones."""
    logits = np.zeros(n_vocab, np.float32)
    logits[:256] = 10
    logits[256] = 10 + math.log(0.2)
    candidates = Candidates(n_vocab)
    raw = candidates.fill(logits)
    InfillEnding([256], n_vocab).apply(raw)
    assert len(view(raw)) == n_left
    assert view(raw)["id"][-1] == 256


def opened(prompt: list[int], **fields: Any) -> None:
    scratch: Any = SimpleNamespace(candidates=None, pieces=[])
    open_sampler(params_of(**fields), model(), scratch, prompt)


def test_penalties_see_as_much_of_the_prompt_as_their_window_holds(made: Made) -> None:
    opened([1, 2, 3, 4], repeat_penalty=1.2, repeat_last_n=3)
    assert made.accepted == [2, 3, 4]


@pytest.mark.parametrize("instead", ["AB", [65, 66]], ids=str)
def test_penalties_see_what_stands_for_the_prompt(made: Made, instead: Any) -> None:
    opened([1, 2, 3, 4], repeat_penalty=1.2, penalty_prompt=instead)
    assert made.accepted == [65, 66]


def test_biases_are_those_of_the_request_and_ends_are_ruled_out() -> None:
    asked = params_of(logit_bias=[[5, 1.5], ["a", False]], ignore_eos=True)
    never = -math.inf
    biases = ((5, 1.5), (97, never), (2, never), (3, never))
    assert resolve_biases(asked, model()) == biases
