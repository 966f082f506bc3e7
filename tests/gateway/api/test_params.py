"""Fields of a request that depend on what the model's workers can do."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.api.fields.params import read_params
from gateway.api.openai.chat import plan
from gateway.api.results.settings import legacy_settings, settings
from protocol.errors import InvalidRequest
from protocol.wire.sampling import SamplingParams
from tests.gateway.cards import CARD

GUESSING = replace(
    CARD,
    defaults=SamplingParams(
        speculative_types=("ngram-simple", "draft-simple"),
        speculative_n_max=16,
        speculative_n_min=1,
        speculative_p_min=0.25,
    ),
)


def shown(body: dict[str, Any]) -> list[Any]:
    params = read_params(body, GUESSING)
    told = settings(params) | legacy_settings(params, n_ctx=1, model="m")
    return [told[f"speculative.{key}"] for key in ("types", "n_max", "n_min", "p_min")]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, ["ngram-simple,draft-simple", 16, 1, 0.25]),
        ({"speculative.n_max": None}, ["ngram-simple,draft-simple", 16, 1, 0.25]),
        (
            {"speculative.n_max": 4, "speculative.n_min": 2, "speculative.p_min": 0.5},
            ["ngram-simple,draft-simple", 4, 2, 0.5],
        ),
        ({"speculative.n_max": 99}, ["ngram-simple,draft-simple", 16, 1, 0.25]),
        ({"speculative.type": "draft-simple"}, ["draft-simple", 16, 1, 0.25]),
        ({"speculative.types": "none"}, ["none", 16, 1, 0.25]),
        ({"speculative.type": ["ngram-simple", "none"]}, ["none", 16, 1, 0.25]),
    ],
)
def test_the_settings_tell_how_a_request_guesses(body: dict[str, Any], told: list[Any]) -> None:
    assert shown(body) == told


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"speculative.type": "ngram-cache"}, "ngram-cache is not available here, only ngram"),
        ({"speculative.type": "draft-eagle3"}, "must be among none, draft-simple"),
        ({"speculative.type": 3}, "type must be string"),
        ({"speculative.type": [3]}, "must be among"),
        ({"speculative.n_max": -1}, "Value must be between 0"),
        ({"speculative.n_min": "x"}, "type must be number"),
        ({"speculative.p_min": 1.5}, "Value must be between 0 <= value <= 1"),
    ],
)
def test_what_nobody_here_can_guess_by_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refusal:
        read_params(body, GUESSING)
    assert refusal.value.param == next(iter(body))


def test_a_server_that_does_not_guess_takes_the_limits_and_refuses_the_kinds() -> None:
    body = {"speculative.n_max": 16, "speculative.n_min": 5, "speculative.type": "none"}
    assert read_params(body, CARD).speculative_n_max == 0
    with pytest.raises(InvalidRequest, match="not available here, only none"):
        read_params({"speculative.type": "ngram-simple"}, CARD)


@pytest.mark.parametrize("value", ["peg-native", 2, True])
def test_the_parser_of_an_answer_cannot_be_chosen(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_params({"chat_format": value}, CARD)
    assert caught.value.param == "chat_format"
    assert read_params({"chat_format": "Content-only"}, CARD).chat_format == "Content-only"


def test_the_settings_tell_what_becomes_of_reasoning() -> None:
    card = replace(CARD, reasoning_format="deepseek-legacy")
    told = settings(read_params({"stream": True}, card))
    assert (told["reasoning_format"], told["reasoning_in_content"]) == ("deepseek-legacy", True)
    assert told["chat_format"] == "Content-only" and told["generation_prompt"] == ""
    params = plan({"messages": [], "reasoning_format": "none"}, card).tasks[0].params
    assert settings(params)["chat_format"] == "peg-native"
    assert settings(params)["reasoning_format"] == "none"
