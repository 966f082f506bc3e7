"""The parameter table: llama-server's names, defaults and limits."""

import math
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.sampling import UNSET_SEED, SamplingParams
from protocol.schema import describe, read
from protocol.values import DEFAULT_SAMPLERS, SAMPLER_NAMES

ROWS = describe(SamplingParams)


def test_every_field_says_what_it_is_and_who_consumes_it() -> None:
    for row in ROWS:
        assert row.spec.doc.endswith((".", ";")), row.name
        assert row.spec.stage in ("sampler", "engine", "link", "gateway"), row.name


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
        {"top_p": 1.1},
        {"top_k": -2},
        {"n_probs": 1001},
        {"seed": 1.5},
        {"seed": 2**64},
        {"stop": [1]},
        {"stop": ["x"] * 129},
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
