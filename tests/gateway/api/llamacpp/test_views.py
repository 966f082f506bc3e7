"""/props, /slots and /v1/models: shapes of both eras."""

from dataclasses import replace

import pytest

from gateway.api.llamacpp.views import ServerFeatures, models, props, router_props, slot
from protocol.wire.facts import SlotReport
from protocol.wire.messages import Finish
from tests.gateway.cards import CARD, params

SEEDS = {
    "dynatemp_exponent",
    "dynatemp_range",
    "frequency_penalty",
    "grammar",
    "id",
    "ignore_eos",
    "logit_bias",
    "min_p",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "model",
    "n_ctx",
    "n_keep",
    "n_predict",
    "n_probs",
    "next_token",
    "penalize_nl",
    "penalty_prompt_tokens",
    "presence_penalty",
    "prompt",
    "repeat_last_n",
    "repeat_penalty",
    "samplers",
    "seed",
    "state",
    "stop",
    "stream",
    "task_id",
    "temperature",
    "tfs_z",
    "top_k",
    "top_p",
    "typical_p",
    "use_penalty_prompt_tokens",
}
"""Keys of a slot in the documents of 2024."""
SEEDS_NEXT = {
    "has_next_token",
    "n_remain",
    "num_tokens_predicted",
    "stopped_eos",
    "stopped_limit",
    "stopped_word",
    "stopping_word",
}
FEATURES = ServerFeatures(slots=True, metrics=False)


def test_a_slot_tells_nothing_of_tasks_until_it_ran_one() -> None:
    shown = slot(SlotReport(id=3, is_processing=False), CARD)
    assert shown == {
        "id": 3,
        "n_ctx": 512,
        "speculative": False,
        "is_processing": False,
        "state": 0,
    }


def test_a_used_slot_has_todays_keys_and_the_seeds() -> None:
    report = SlotReport(
        id=1, is_processing=True, task_id=7, n_past=4, n_decoded=2, params=params(stop=("x",))
    )
    shown = slot(report, CARD)
    assert shown["n_prompt_tokens"] == 4
    assert set(shown) >= SEEDS
    assert set(slot(report, CARD, legacy=True)["next_token"]) >= SEEDS_NEXT
    assert (shown["prompt"], shown["stop"], shown["grammar"]) == ("", [], "")
    assert shown["id_task"] == shown["task_id"] == 7
    assert shown["next_token"][0]["n_decoded"] == 2
    assert shown["params"]["temperature"] == shown["temperature"] == shown["temp"]
    assert (shown["state"], shown["n_ctx"], shown["model"]) == (1, 512, "tiny")
    assert "stop" not in shown["params"]
    assert slot(report, CARD, legacy=True)["next_token"]["num_tokens_predicted"] == 2


def test_an_idle_slot_keeps_nothing_of_its_last_tasks_budget() -> None:
    report = SlotReport(
        id=1,
        is_processing=False,
        n_decoded=8,
        n_remain=0,
        has_new_line=True,
        finish=Finish.LIMIT,
        params=params(),
    )
    (following,) = slot(report, CARD)["next_token"]
    assert (following["n_remain"], following["n_decoded"]) == (-1, 0)
    assert not following["has_new_line"]
    assert (following["num_tokens_predicted"], following["stopped_limit"]) == (8, True)


def test_a_worker_that_is_debugged_shows_what_clients_wrote() -> None:
    report = SlotReport(
        id=1,
        is_processing=False,
        finish=Finish.WORD,
        stopping_word="x",
        params=params(stop=("x",), grammar="root ::= [a-z]", logit_bias=((5, 1.0),)),
        prompt="Hi",
        generated=" you",
    )
    shown = slot(report, CARD)
    assert (shown["prompt"], shown["generated"], shown["stop"]) == ("Hi", " you", ("x",))
    assert shown["params"]["grammar"] == shown["grammar"] == "root ::= [a-z]"
    assert shown["logit_bias"] == [{"bias": 1.0, "token": 5}]
    (following,) = shown["next_token"]
    assert (following["stopped_word"], following["stopping_word"]) == (True, "x")
    assert not following["stopped_eos"] and not following["stopped_limit"]


def test_props_show_the_options_of_sampling_as_they_were_given() -> None:
    card = replace(CARD, defaults=params(top_k=-1, n_keep=-1, n_predict=50))
    shown = props(card, 4, FEATURES)["default_generation_settings"]
    names = ("top_k", "n_keep", "n_predict", "max_tokens")
    assert [shown["params"][name] for name in names] == [-1, 0, -1, -1]
    assert [shown[name] for name in names] == [-1, -1, 50, 50]


def test_props_have_every_key_of_llama_server() -> None:
    shown = props(CARD, 4, FEATURES)
    live = [
        "default_generation_settings",
        "total_slots",
        "model_alias",
        "model_ftype",
        "model_path",
        "modalities",
        "media_marker",
        "endpoint_slots",
        "endpoint_props",
        "endpoint_metrics",
        "ui",
        "ui_settings",
        "chat_template",
        "chat_template_caps",
        "bos_token",
        "eos_token",
        "build_info",
        "is_sleeping",
        "cors_proxy_enabled",
    ]
    assert [key for key in shown if key in live] == live
    assert shown["total_slots"] == 4
    assert shown["assistant_name"] == shown["user_name"] == ""
    assert "im_start" in shown["chat_template"]
    assert list(shown["default_generation_settings"])[:2] == ["params", "n_ctx"]


def test_several_models_are_a_router() -> None:
    assert router_props([CARD, CARD])["max_instances"] == 2


def test_a_router_without_a_loaded_model_tells_its_own_build() -> None:
    assert router_props([CARD])["build_info"] == CARD.build
    told = router_props([], 2)["build_info"]
    assert told.startswith("b") and told[1:2].isdigit()


def test_models_are_listed_for_three_kinds_of_client() -> None:
    shown = models([CARD], created=5, states={CARD.name: "sleeping"})
    assert shown["object"] == "list"
    assert shown["data"][0]["created"] == 5
    assert shown["data"][0]["status"] == {"value": "sleeping"}
    assert shown["data"][0]["meta"]["n_ctx"] == 512
    assert shown["models"][0]["capabilities"] == ["completion"]


@pytest.mark.parametrize("takes", ["has_vision", "has_audio"])
def test_a_model_with_a_projector_is_multimodal_in_the_list(takes: str) -> None:
    card = replace(CARD, **{takes: True})  # type: ignore[arg-type]
    (listed,) = models([card], created=5, states={card.name: "loaded"})["models"]
    assert listed["capabilities"] == ["completion", "multimodal"]
