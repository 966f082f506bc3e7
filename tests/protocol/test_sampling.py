"""The parameter table: llama-server's names, defaults and limits."""

import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.wire import values
from protocol.wire.sampling import UNSET_SEED, SamplingParams
from protocol.wire.schema import describe, read
from protocol.wire.shapes import Bounds
from protocol.wire.values import DEFAULT_SAMPLERS, SAMPLER_NAMES, take_logit_bias

ROWS = describe(SamplingParams)


def test_every_field_says_what_it_is() -> None:
    for row in ROWS:
        assert row.spec.doc.endswith((".", ";")), row.name


def test_no_name_is_used_twice() -> None:
    names = [name for row in ROWS for name in (row.name, *row.spec.aliases)]
    assert len(names) == len(set(names))


def test_defaults_pass_their_own_checks() -> None:
    params = SamplingParams()
    body = {row.name: getattr(params, row.name) for row in ROWS}
    assert read(params, body) == params


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"temp": 0.5}, "temperature", 0.5),
        ({"max_tokens": 7}, "n_predict", 7),
        ({"max_completion_tokens": 7}, "n_predict", 7),
        ({"seed": -1}, "seed", UNSET_SEED),
        ({"seed": 2**32 + 5}, "seed", 5),
        ({"stop": "a"}, "stop", ("a",)),
        ({"stop": ["a", "", "b"]}, "stop", ("a", "b")),
        ({"samplers": "kt"}, "samplers", ("top_k", "temperature")),
        ({"samplers": "top-k;nucleus"}, "samplers", ("top_k", "top_p")),
        ({"samplers": ["min-p"]}, "samplers", ("min_p",)),
        ({"logit_bias": [[5, False]]}, "logit_bias", ((5, -math.inf),)),
        ({"logit_bias": {"5": 1, " a": -2}}, "logit_bias", ((5, 1.0), (" a", -2.0))),
        ({"logit_bias": [{"id": 5, "bias": 1}]}, "logit_bias", ((5, 1.0),)),
        ({"penalty_prompt": [1, 2]}, "penalty_prompt", (1, 2)),
    ],
)
def test_llama_servers_spellings_are_read(body: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read(SamplingParams(), body), field) == value


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": "hot"},
        {"seed": 2**64},
        {"stop": [1]},
        {"samplers": "k?"},
        {"samplers": 5},
        {"samplers": ["magic"]},
        {"logit_bias": 5},
        {"logit_bias": [[True, 1]]},
        {"logit_bias": [[1, math.nan]]},
        {"logit_bias": [[1, math.inf]]},
        {"dry_sequence_breakers": []},
        {"grammar": 5},
        {"penalty_prompt": 5},
    ],
)
def test_what_cannot_be_meant_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(SamplingParams(), body)
    assert caught.value.param == next(iter(body))


def test_sampler_letters_are_unique() -> None:
    assert len(set(SAMPLER_NAMES.values())) == len(SAMPLER_NAMES)
    assert set(DEFAULT_SAMPLERS) <= set(SAMPLER_NAMES)


FLOAT32_MAX = 3.4028234663852886e38
REQUEST = Bounds({"n_ctx": 512})


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        # llama-server's soft limits (tools/server/server-schema.cpp)
        ({"top_p": 1.5}, "top_p", 1.0),
        ({"top_p": -1}, "top_p", 0.0),
        ({"min_p": 2}, "min_p", 1.0),
        ({"top_k": -5}, "top_k", 0),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 2**40}, "top_k", 2**31 - 1),
        ({"xtc_probability": 7}, "xtc_probability", 1.0),
        ({"xtc_threshold": -7}, "xtc_threshold", 0.0),
        ({"mirostat": 3}, "mirostat", 2),
        ({"mirostat": -1}, "mirostat", 0),
        ({"adaptive_target": 5}, "adaptive_target", 1.0),
        ({"typical_p": 3}, "typical_p", 3.0),
        ({"dynatemp_range": -1}, "dynatemp_range", -1.0),
        ({"temperature": 1e300}, "temperature", FLOAT32_MAX),
        ({"dry_base": 0.5}, "dry_base", 1.75),
        ({"dry_base": 1e300}, "dry_base", FLOAT32_MAX),
        ({"presence_penalty": 1e9}, "presence_penalty", 1e6),
        ({"n_probs": 1001}, "n_probs", 1001),
        ({"n_probs": 2**31}, "n_probs", 1024),
        ({"n_probs": -1}, "n_probs", 0),
        ({"repeat_last_n": 2**31 - 1}, "repeat_last_n", 512),
        ({"dry_penalty_last_n": 2**31 - 1}, "dry_penalty_last_n", 512),
        ({"repeat_last_n": -1}, "repeat_last_n", -1),
        # a double where an integer is due
        ({"n_predict": 8.9}, "n_predict", 8),
        ({"n_predict": -0.5}, "n_predict", 0),
        ({"seed": 1.5}, "seed", 1),
        ({"n_keep": 3.0}, "n_keep", 3),
        ({"t_max_predict_ms": 2**40}, "t_max_predict_ms", 2**40),
        # what it leaves out
        ({"samplers": "k?"}, "samplers", ("top_k",)),
        ({"samplers": ["magic", "min_p"]}, "samplers", ("min_p",)),
        ({"samplers": ["magic"]}, "samplers", ()),
        (
            {"logit_bias": [[1, 2, 3], 5, [2, 1], [3, "x"], [4, True], [[], 1]]},
            "logit_bias",
            ((2, 1.0),),
        ),
        ({"logit_bias": [[5.0, 1]]}, "logit_bias", ((5, 1.0),)),
        ({"logit_bias": [[5, 1e300]]}, "logit_bias", ((5, FLOAT32_MAX),)),
        ({"logit_bias": {"5": True, "6": 1}}, "logit_bias", ((6, 1.0),)),
        # beyond llama-server's: with such scales layers overflow
        ({"lora": [{"id": 0, "scale": 1e38}]}, "lora", ((0, 100.0),)),
        ({"lora": [{"id": i, "scale": i + 2} for i in (1, 0)]}, "lora", ((0, 2.0), (1, 3.0))),
        ({"lora": [{"id": 0, "scale": scale} for scale in (3, 1, 2)]}, "lora", ((0, 2.0),)),
        ({"lora": [{"id": 0, "scale": -1e308}]}, "lora", ((0, -100.0),)),
    ],
)
def test_a_request_is_clamped_cut_and_skipped_as_in_llama_server(
    body: dict[str, Any], field: str, value: Any
) -> None:
    taken = getattr(read(SamplingParams(), body, bounds=REQUEST), field)
    assert taken == value and type(taken) is type(value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n_predict": -2}, "Value must be between -1"),
        ({"n_predict": 2**31}, "Value must be between -1"),
        ({"n_predict": 1e30}, "Value must be between -1"),
        ({"repeat_last_n": -2}, "Value must be between -1 <= value <= 512"),
        ({"adaptive_decay": 1}, "Value must be between 0"),
        ({"repeat_penalty": 0}, "Value must be between"),
        ({"n": 0}, "Value must be between 1"),
        ({"seed": 2**64}, "must fit into 64 bits"),
        ({"seed": 1.8446744073709552e19}, "must fit into 64 bits"),
        ({"logit_bias": [[1.5, 1]]}, "a token must be a whole number or a text, but got 1.5"),
        ({"samplers": [5]}, "each must be a string, but is number"),
        ({"top_k": "5"}, "type must be number, but is string"),
        ({"top_k": True}, "type must be number, but is boolean"),
    ],
)
def test_what_llama_server_refuses_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        read(SamplingParams(), body, bounds=REQUEST)
    assert caught.value.param == next(iter(body))


@pytest.mark.parametrize(
    "body", [{"samplers": ["magic"]}, {"logit_bias": [[1, 2, 3]]}, {"n_predict": 8.9}]
)
def test_a_configuration_is_read_strictly(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read(SamplingParams(), body)


def test_digits_beyond_any_token_are_still_a_token() -> None:
    body = {"logit_bias": {"9" * 5000: 1}}
    ((token, _),) = read(SamplingParams(), body, bounds=REQUEST).logit_bias
    assert isinstance(token, int) and token > 2**31


BIASES = [[i, 1.0] for i in range(8192)]


@given(
    st.lists(
        st.tuples(
            st.integers() | st.just("a") | st.just(True),
            st.floats(allow_nan=False) | st.integers() | st.just(False),
        ).map(list)
    )
)
def test_pairs_are_read_alike_together_and_one_by_one(pairs: list[Any]) -> None:
    skipped = [1, 2, 3]  # llama-server skips what is no pair

    def take(value: list[Any]) -> object:
        try:
            return take_logit_bias(value)
        except ValueError as error:
            return str(error)

    assert take(pairs) == take([*pairs, skipped])


def test_one_bias_that_is_no_number_among_others_is_found() -> None:
    with pytest.raises(ValueError, match="finite"):
        take_logit_bias([[1, 1.0], [2, math.nan]])


def test_many_biases_take_a_few_calls_each() -> None:
    """8,192 of them kept the gateway's loop busy for 20 ms: they were looked at one by one."""
    bounds = Bounds({"biases": 8192, "depth": 128})
    n_calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal n_calls
        n_calls += event == "call"

    sys.setprofile(count)
    try:
        values.BIASES.check(BIASES, "logit_bias", bounds)
        take_logit_bias(BIASES)
    finally:
        sys.setprofile(None)
    assert n_calls < 4 * len(BIASES)


def test_one_entry_that_is_too_long_is_named() -> None:
    bounds = Bounds({"biases": 8192})
    with pytest.raises(InvalidRequest) as caught:
        values.BIASES.check([*BIASES[:10], ["x" * 257, 1]], "logit_bias", bounds)
    assert caught.value.param == "logit_bias[10]"
