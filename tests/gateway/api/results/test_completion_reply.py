"""/completion's objects: every key of both eras, in llama-server's order."""

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.api.reply import TaskOutcome
from gateway.api.results.completion import completion, project
from gateway.api.results.completion_reply import CompletionReply
from gateway.api.results.figures import timings, total
from protocol.wire.facts import Timings
from protocol.wire.messages import Delta, Done, Finish, Progress, Started
from tests.gateway.cards import CARD, PROB, done, params

# Captured from llama-server (build 1, commit 0c1e570), SmolLM2, {"prompt":"Once upon"}.
LIVE_KEYS = [
    "index",
    "content",
    "tokens",
    "id_slot",
    "stop",
    "model",
    "tokens_predicted",
    "tokens_evaluated",
    "generation_settings",
    "prompt",
    "has_new_line",
    "truncated",
    "stop_type",
    "stopping_word",
    "tokens_cached",
    "timings",
]
SEED_KEYS = ["slot_id", "stopped_eos", "stopped_word", "stopped_limit"]


def _outcome(**fields: Any) -> TaskOutcome:
    values: dict[str, Any] = {"text": " a b", "tokens": (3, 5), "probs": (), "done": done()}
    return TaskOutcome(**(values | fields))


def test_the_final_object_has_the_keys_of_both_eras() -> None:
    result = completion(CARD, params(), 0, _outcome())
    assert [key for key in result if key in LIVE_KEYS] == LIVE_KEYS
    assert set(result) == {*LIVE_KEYS, *SEED_KEYS}
    assert result["tokens"] == ()
    assert result["id_slot"] == result["slot_id"] == 1
    assert (result["tokens_predicted"], result["tokens_evaluated"]) == (2, 4)
    assert result["tokens_cached"] == 5


@pytest.mark.parametrize("in_force", [True, False])
def test_the_settings_tell_where_tokens_were_chosen_in_fact(in_force: bool) -> None:
    outcome = _outcome(done=replace(done(), backend_sampling=in_force))
    result = completion(CARD, params(backend_sampling=True), 0, outcome)
    assert result["generation_settings"]["backend_sampling"] is in_force


@pytest.mark.parametrize(
    ("finish", "stop_type", "flag"),
    [
        (Finish.EOS, "eos", "stopped_eos"),
        (Finish.WORD, "word", "stopped_word"),
        (Finish.LIMIT, "limit", "stopped_limit"),
        (Finish.NONE, "none", None),
    ],
)
def test_stop_type_and_its_flags_agree(finish: Finish, stop_type: str, flag: str | None) -> None:
    result = completion(CARD, params(), 0, _outcome(done=done(finish=finish)))
    assert result["stop_type"] == stop_type
    flags = {key for key in SEED_KEYS[1:] if result[key]}
    assert flags == ({flag} if flag else set())


def test_tokens_come_only_when_asked_for() -> None:
    assert completion(CARD, params(return_tokens=True), 0, _outcome())["tokens"] == (3, 5)


def test_probabilities_have_the_keys_of_both_eras() -> None:
    result = completion(CARD, params(n_probs=2), 0, _outcome(probs=(PROB,)))
    (item,) = result["completion_probabilities"]
    assert list(item) == ["id", "token", "bytes", "logprob", "top_logprobs", "content", "probs"]
    assert item["bytes"] == [32, 97] and item["content"] == " a"
    assert item["top_logprobs"][1] == {"id": 4, "token": "", "bytes": [195], "logprob": -1.5}
    assert [one["tok_str"] for one in item["probs"]] == [" a", ""]


def test_post_sampling_probabilities_leave_out_what_the_chain_removed() -> None:
    prob = type(PROB)(id=3, piece=b"a", p=0.75, top=((3, b"a", 0.75), (4, b"b", 0.0)))
    asked = params(n_probs=2, post_sampling_probs=True)
    (item,) = completion(CARD, asked, 0, _outcome(probs=(prob,)))["completion_probabilities"]
    assert item["prob"] == 0.75
    assert item["top_probs"] == [{"id": 3, "token": "a", "bytes": [97], "prob": 0.75}]
    assert item["probs"] == [{"tok_str": "a", "prob": 0.75}]


def test_projection_keeps_paths_and_drops_the_missing() -> None:
    result = {"content": "x", "timings": {"prompt_n": 3}, "tokens": [1]}
    assert project(result, ("content", "timings/prompt_n", "nope", "tokens/0")) == {
        "content": "x",
        "timings/prompt_n": 3,
    }
    asked = params(response_fields=("stop_type", "generation_settings/n_predict"))
    assert completion(CARD, asked, 0, _outcome()) == {
        "stop_type": "limit",
        "generation_settings/n_predict": -1,
    }


def _frame(data: bytes) -> Any:
    assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
    return json.loads(data[6:])


def test_a_chunk_tells_text_tokens_slot_and_counts() -> None:
    reply = CompletionReply(CARD, [params()])
    reply.started(0, Started(slot=3, n_prompt=4))
    chunk = _frame(reply.delta(0, Delta(text='"\n', tokens=(7,), n_predicted=1)))
    assert chunk == {
        "index": 0,
        "content": '"\n',
        "tokens": [7],
        "stop": False,
        "id_slot": 3,
        "slot_id": 3,
        "tokens_predicted": 1,
        "tokens_evaluated": 4,
        "multimodal": False,
    }


def test_a_chunk_without_text_still_tells_its_tokens() -> None:
    chunk = _frame(CompletionReply(CARD, [params()]).delta(0, Delta(tokens=(7,))))
    assert chunk["content"] == "" and chunk["tokens"] == [7]


def test_timings_tell_of_guesses_only_where_there_were_any() -> None:
    told = timings(Timings(predicted_n=9, draft_n=6, draft_n_accepted=4))
    assert (told["draft_n"], told["draft_n_accepted"]) == (6, 4)
    assert "draft_n" not in timings(Timings(predicted_n=9))
    both = [Done(finish=Finish.EOS, timings=Timings(draft_n=6, draft_n_accepted=i)) for i in (1, 2)]
    assert (total(both).draft_n, total(both).draft_n_accepted) == (12, 3)


def test_timings_progress_and_probabilities_ride_along() -> None:
    reply = CompletionReply(CARD, [params(n_probs=1)])
    delta = Delta(text="a", probs=(PROB,), timings=Timings(predicted_n=1))
    chunk = _frame(reply.delta(0, delta))
    assert chunk["timings"]["predicted_per_second"] == 0.0
    assert len(chunk["completion_probabilities"][0]["top_logprobs"]) == 1
    progress = _frame(reply.progress(0, Progress(total=9, cached=1, processed=4, time_ms=2.7)))
    assert progress["prompt_progress"] == {"total": 9, "cache": 1, "processed": 4, "time_ms": 2}
    assert progress["content"] == ""
    assert "timings" not in progress


def test_progress_tells_the_times_so_far_if_each_token_does() -> None:
    # llama-server: {"cache_n": 0, "prompt_n": 64, "prompt_ms": 363.34, …, "predicted_n": 0, …}
    reply = CompletionReply(CARD, [params(timings_per_token=True)])
    progress = Progress(total=9, cached=1, processed=4, time_ms=2.7)
    chunk = _frame(reply.progress(0, progress))
    assert list(chunk)[-2:] == ["timings", "prompt_progress"]
    told = chunk["timings"]
    assert (told["cache_n"], told["prompt_n"], told["prompt_ms"]) == (1, 3, 2.7)
    assert (told["predicted_n"], told["predicted_per_second"]) == (0, 0.0)
    first = _frame(reply.progress(0, replace(progress, processed=1, time_ms=0.0)))
    assert first["timings"]["prompt_per_second"] == 0.0


def test_the_settings_tell_the_stop_strings_that_the_worker_added() -> None:
    stops = ("a", "User:")
    outcome = TaskOutcome(text="", tokens=(), probs=(), done=replace(done(), stops=stops))
    assert completion(CARD, params(stop=("a",)), 0, outcome)["generation_settings"]["stop"] == stops


def test_the_last_chunk_is_the_object_without_text() -> None:
    reply = CompletionReply(CARD, [params(stream=True)])
    last = _frame(reply.done(0, done()))
    assert (last["content"], last["tokens"], last["stop"]) == ("", [], True)
    assert last["generation_settings"]["stream"] is True
    assert reply.end() == b""


def test_one_choice_is_an_object_several_are_an_array() -> None:
    assert CompletionReply(CARD, [params()]).result([_outcome()])["index"] == 0
    several = CompletionReply(CARD, [params()] * 2).result([_outcome(), _outcome()])
    assert [one["index"] for one in several] == [0, 1]
    assert b"null" not in orjson.dumps(several)
