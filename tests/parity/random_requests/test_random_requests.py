"""What is compared with llama-server at random can be repeated, and says where answers differ."""

import json

import pytest

from tests.parity.random_requests.differ import differences
from tests.parity.random_requests.kinds import KINDS, random_steps
from tests.parity.random_requests.pieces import joined


def sent(kind: str, seed: int, number: int) -> str:
    """Return all that is sent."""
    return json.dumps([(step.path, step.body) for step in random_steps(kind, seed, number)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_and_a_number_alone_decide_what_is_asked(kind: str) -> None:
    bodies = [sent(kind, 1, number) for number in range(50)]
    assert bodies == [sent(kind, 1, number) for number in range(50)]
    assert len(set(bodies)) > 25
    assert bodies[0] != sent(kind, 2, 0)


def test_how_many_tokens_come_at_once_is_no_difference() -> None:
    ones = [{"content": text, "tokens": [1], "stop": False} for text in "ab"]
    assert joined([*ones, {"stop": True}]) == [{"content": "ab", "tokens": [1, 1]}, {"stop": True}]
    deltas = [{"choices": [{"finish_reason": None, "delta": {"content": text}}]} for text in "ab"]
    assert joined([*deltas, "[DONE]"]) == [{"text": "ab"}, "[DONE]"]
    assert joined([{"is_processing": False}] * 2) == [{"is_processing": False}] * 2


def test_only_a_named_mistake_may_be_refused() -> None:
    theirs, ours = {"status": 200, "body": {}}, {"status": 400, "body": {"error": {"message": ""}}}
    assert differences(theirs, ours, "/completion")
    ours["body"] = {"error": {"message": "Field 'x': must be a string"}}
    assert differences(theirs, ours, "/completion"), "all values are right"
    assert not differences(theirs, ours, "/completion", may_be_wrong=True)
    assert not differences({"status": 500, "body": {}}, ours, "/completion")
    assert differences(theirs, {"status": 500, "body": ours["body"]}, "/completion")


def test_more_may_be_found_in_the_cache() -> None:
    theirs = {"status": 200, "body": {"timings": {"cache_n": 2, "prompt_n": 5}}}
    more = {"status": 200, "body": {"timings": {"cache_n": 6, "prompt_n": 1}}}
    assert not differences(theirs, more, "/completion")
    assert len(differences(more, theirs, "/completion")) == 1


def test_differences_name_their_place() -> None:
    piece = {"content": "a", "stop": False, "tokens": [0], "timings": {}}
    theirs = {"status": 200, "body": [piece, {"content": "b", "id": "x", "n": 1.0}]}
    ours = {"status": 200, "body": [{**piece, "tokens": []}, {"content": "c", "id": "y", "n": 1}]}
    del ours["body"][0]["timings"]  # type: ignore[index]
    assert differences(theirs, ours, "/completion") == ['[1].content: "b" became "c"']
    assert differences(theirs, {"status": 400, "body": {}}, "")[0].startswith("STATUS")
