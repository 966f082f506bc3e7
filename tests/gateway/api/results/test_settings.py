"""generation_settings: the 49 keys of llama-server in its order, float32 noise included."""

import dataclasses
import math
from typing import Any

import orjson
import pytest

from gateway.api.openai.reply import legacy_log_probs
from gateway.api.reply import ResponseOptions
from gateway.api.results import figures
from gateway.api.results.figures import completion_probabilities, timings, token_probs, total
from gateway.api.results.settings import float32, legacy_settings, metric_settings, settings
from protocol.config.options.argument_readers import read_breakers
from protocol.wire.facts import Timings, TokenProb
from protocol.wire.sampler_params import SamplerParams
from protocol.wire.sampling import SamplingParams
from tests.gateway.cards import done, params

# Captured from llama-server (build 1, commit 0c1e570), for a request without any field.
LIVE = {
    "seed": 4294967295,
    "temperature": 0.800000011920929,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_k": 40,
    "top_p": 0.949999988079071,
    "min_p": 0.05000000074505806,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.10000000149011612,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ("\n", ":", '"', "*"),
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.10000000149011612,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.8999999761581421,
    "stop": (),
    "max_tokens": -1,
    "n_predict": -1,
    "n_keep": 0,
    "n_discard": 0,
    "ignore_eos": False,
    "stream": False,
    "logit_bias": [],
    "n_probs": 0,
    "min_keep": 0,
    "grammar": "",
    "grammar_lazy": False,
    "grammar_triggers": (),
    "preserved_tokens": (),
    "chat_format": "Content-only",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "generation_prompt": "",
    "samplers": (
        "penalties",
        "dry",
        "top_n_sigma",
        "top_k",
        "typ_p",
        "top_p",
        "min_p",
        "xtc",
        "temperature",
    ),
    "speculative.types": "none",
    "timings_per_token": False,
    "post_sampling_probs": False,
    "backend_sampling": False,
    "lora": (),
}


def test_settings_equal_llama_servers_in_order() -> None:
    assert list(settings(SamplingParams()).items()) == list(LIVE.items())


def test_no_sequence_breakers_are_shown_as_none() -> None:
    params = SamplingParams(dry_sequence_breakers=read_breakers("none"))
    assert settings(params)["dry_sequence_breakers"] == ()


def test_a_temperature_below_zero_is_shown_as_zero() -> None:
    assert settings(params(temperature=-1.0))["temperature"] == 0.0


def test_metric_settings_hold_nothing_that_a_client_wrote() -> None:
    secret = params(stop=("s",), grammar="g", logit_bias=((1, 2.0),))
    shown = metric_settings(secret)
    assert len(shown) == 42
    assert not {"stop", "grammar", "logit_bias", "dry_sequence_breakers"} & set(shown)


def test_biases_are_echoed_as_llama_server_does() -> None:
    biased = params(logit_bias=((3, -1.0), (5, -math.inf)))
    assert settings(biased)["logit_bias"] == [
        {"bias": -1.0, "token": 3},
        {"bias": None, "token": 5},
    ]


def test_every_sampler_field_is_echoed_somewhere() -> None:
    shown = settings(SamplingParams()) | legacy_settings(SamplingParams(), n_ctx=1, model="m")
    sampler_fields = {field.name for field in dataclasses.fields(SamplerParams)}
    assert sampler_fields - {"penalty_prompt"} <= set(shown)


def test_legacy_keys_tell_the_penalty_prompt() -> None:
    shown = legacy_settings(params(penalty_prompt=(1, 2)), n_ctx=8, model="m")
    assert shown["penalty_prompt_tokens"] == [1, 2]
    assert shown["use_penalty_prompt_tokens"] is True
    assert shown["penalize_nl"] is False


@pytest.mark.parametrize("value", [0.8, 1e39, -1e39, 0.0, 1e-50])
def test_float32_is_always_finite(value: float) -> None:
    assert math.isfinite(float32(value))


def test_timings_follow_llama_servers_arithmetic() -> None:
    # From the live capture: 8 tokens in 2.122 ms are 7 steps.
    shown = timings(
        Timings(cache_n=0, prompt_n=18, prompt_ms=2.457, predicted_n=8, predicted_ms=2.122)
    )
    assert shown["prompt_per_token_ms"] == pytest.approx(0.1365)
    assert shown["prompt_per_second"] == pytest.approx(7326.0, abs=0.1)
    assert shown["predicted_per_token_ms"] == pytest.approx(0.30314, abs=1e-5)
    assert shown["predicted_per_second"] == pytest.approx(3298.77, abs=0.01)


@pytest.mark.parametrize("n", [0, 1])
def test_timings_of_nothing_are_zero(n: int) -> None:
    shown = timings(Timings(predicted_n=n))
    assert shown["predicted_per_second"] == shown["prompt_per_second"] == 0.0
    assert shown["predicted_per_token_ms"] == 0.0


def test_timings_of_choices_add_up() -> None:
    assert total([done(), done()]) == Timings(
        cache_n=2, prompt_n=6, prompt_ms=12.0, predicted_n=4, predicted_ms=8.0
    )


def test_no_token_is_more_than_certain() -> None:
    prob = TokenProb(id=1, piece=b"a", p=1000.0, top=((1, b"a", 1000.0),))
    (item,) = completion_probabilities([prob], post=False, n_top=1)
    assert item["probs"] == [{"tok_str": "a", "prob": 1.0}]


def test_an_impossible_token_has_the_lowest_number() -> None:
    prob = TokenProb(id=1, piece=b"a", p=-math.inf, top=((1, b"a", -math.inf),))
    (item,) = token_probs([prob], post=False, n_top=1)
    assert item["logprob"] == item["top_logprobs"][0]["logprob"] == -3.4028234663852886e38


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        ("é".encode(), "é"),
        (b"a\xf0\x9f", "a"),  # the beginning of a character
        (b"\x9f\x98", "\ufffd\ufffd"),  # the middle of one
        (b"\xa9b", "\ufffdb"),
    ],
)
def test_a_token_of_some_bytes_of_a_character_is_shown_as_in_llama_server(
    piece: bytes, shown: str
) -> None:
    (item,) = token_probs([TokenProb(id=1, piece=piece, p=-0.5)], post=False, n_top=0)
    assert item["token"] == shown
    assert item["bytes"] == list(piece)


@pytest.mark.parametrize("post", [False, True])
def test_many_alternatives_are_written_token_by_token(
    monkeypatch: pytest.MonkeyPatch, post: bool
) -> None:
    """orjson lets no stream go on while it writes: an answer of 186 MB took 1.2 s."""
    top = tuple((i, b"\xc3 %d" % i, -0.5 * i if not post else 0.1) for i in range(50))
    probs = [TokenProb(id=1, piece=b"a", p=math.nan), TokenProb(id=2, piece=b"b", p=0.2, top=top)]
    options = ResponseOptions(n_top=50)

    def written() -> list[Any]:
        asked = SamplingParams(post_sampling_probs=post)
        return [
            token_probs(probs, post=post, n_top=50),
            completion_probabilities(probs, post=post, n_top=50),
            legacy_log_probs(probs, asked, options, offset=0)["top_logprobs"],
        ]

    at_once = written()
    monkeypatch.setattr(figures, "MANY", 49)
    in_parts = written()
    assert all(isinstance(item, orjson.Fragment) for items in in_parts for item in items)
    assert orjson.dumps(in_parts) == orjson.dumps(at_once)
