"""What is compared with llama-server at random can be repeated, and says where answers differ."""

import json

import pytest

from tests.parity.drawn.differ import differences
from tests.parity.drawn.requests import KINDS, drawn


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_and_a_number_alone_decide_what_is_asked(kind: str) -> None:
    bodies = [json.dumps(drawn(kind, 1, number).body) for number in range(50)]
    assert bodies == [json.dumps(drawn(kind, 1, number).body) for number in range(50)]
    assert len(set(bodies)) > 25
    assert bodies[0] != json.dumps(drawn(kind, 2, 0).body)


def test_differences_name_their_place() -> None:
    piece = {"content": "a", "stop": False, "tokens": [0], "timings": {}}
    theirs = {"status": 200, "body": [piece, {"content": "b", "id": "x", "n": 1.0}]}
    ours = {"status": 200, "body": [{**piece, "tokens": []}, {"content": "c", "id": "y", "n": 1}]}
    del ours["body"][0]["timings"]  # type: ignore[index]
    assert differences(theirs, ours, "/completion") == ['[1].content: "b" became "c"']
    assert differences(theirs, {"status": 400, "body": {}}, "")[0].startswith("STATUS")
