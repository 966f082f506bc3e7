"""What is compared with llama-server at random can be repeated, and says where answers differ."""

import json

import pytest

from tests.parity.random_requests.cases import KINDS, random_case
from tests.parity.random_requests.differ import differences


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_and_a_number_alone_decide_what_is_asked(kind: str) -> None:
    bodies = [json.dumps(random_case(kind, 1, number).body) for number in range(50)]
    assert bodies == [json.dumps(random_case(kind, 1, number).body) for number in range(50)]
    assert len(set(bodies)) > 25
    assert bodies[0] != json.dumps(random_case(kind, 2, 0).body)


def test_differences_name_their_place() -> None:
    piece = {"content": "a", "stop": False, "tokens": [0], "timings": {}}
    theirs = {"status": 200, "body": [piece, {"content": "b", "id": "x", "n": 1.0}]}
    ours = {"status": 200, "body": [{**piece, "tokens": []}, {"content": "c", "id": "y", "n": 1}]}
    del ours["body"][0]["timings"]  # type: ignore[index]
    assert differences(theirs, ours, "/completion") == ['[1].content: "b" became "c"']
    assert differences(theirs, {"status": 400, "body": {}}, "")[0].startswith("STATUS")
