"""Bodies of the native endpoints: prompts, tokens, flags."""

from array import array
from typing import Any

import orjson
import pytest

from gateway.api.fields.options import read_ping_interval
from gateway.api.fields.prompt import read_prompts
from gateway.api.llamacpp.completion import plan
from gateway.api.llamacpp.tokens import detokenize_task, tokenize_task, tokenized
from protocol.errors import InvalidRequest
from protocol.wire.messages import Tokenized
from protocol.wire.sampling import UNSET_SEED
from tests.gateway.cards import CARD


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a"], ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        (["a", 1], (("a", 1),)),
        ([[1, 2], "b", ["a", 3]], ((1, 2), "b", ("a", 3))),
        ({"prompt_string": "a"}, ("a",)),
        ([{"prompt_string": "a"}, "b"], ("a", "b")),
    ],
)
def test_prompts_come_in_every_shape(prompt: Any, expected: Any) -> None:
    assert read_prompts({"prompt": prompt}, 100) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "key 'prompt' not found"),
        ({"prompt": None}, "key 'prompt' not found"),
        ({"prompt": []}, '"prompt" must not be empty'),
        ({"prompt": [[]]}, '"prompt" must not be empty'),
        ({"prompt": [100]}, "Prompt contains invalid tokens"),
        ({"prompt": [-1]}, "Prompt contains invalid tokens"),
        ({"prompt": [2**63]}, "Prompt contains invalid tokens"),
        ({"prompt": 3}, "must be a string"),
        ({"prompt": [1.5]}, "must be a string"),
        ({"prompt": [True]}, "must be a string"),
        ({"prompt": [["a", None]]}, "must be a string"),
    ],
)
def test_bad_prompts_are_named(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_prompts(body, 100)
    assert message in caught.value.message
    assert caught.value.param == "prompt"


def test_choices_count_seeds_up_only_when_set() -> None:
    tasks = plan({"prompt": ["a", "b"], "n": 2, "seed": 5}, CARD).tasks
    assert [(task.prompt, task.params.seed) for task in tasks] == [
        ("a", 5),
        ("a", 6),
        ("b", 5),
        ("b", 6),
    ]
    free = plan({"prompt": "a", "n_cmpl": 2}, CARD).tasks
    assert {task.params.seed for task in free} == {UNSET_SEED}


def test_the_models_defaults_fill_what_is_left_out() -> None:
    task = plan({"prompt": "a", "slot_id": 1, "max_tokens": 3}, CARD).tasks[0]
    assert (task.params.id_slot, task.params.n_predict) == (1, 3)
    assert task.params.temperature == CARD.defaults.temperature


@pytest.mark.parametrize(("value", "seconds"), [(None, None), (-1, 0.0), (5, 5.0)])
def test_the_ping_interval_is_the_clients(value: int | None, seconds: float | None) -> None:
    assert read_ping_interval({"sse_ping_interval": value}) == seconds


def test_without_content_no_special_token_is_added() -> None:
    assert not tokenize_task({"add_special": True}, 100).add_special
    assert tokenize_task({"add_special": True, "content": ""}, 100).add_special


def test_tokenize_reads_content_and_flags() -> None:
    task = tokenize_task({"content": ["a", 5], "add_special": True, "with_pieces": True}, 100)
    assert task.content == ("a", 5)
    assert task.add_special and task.parse_special and task.with_pieces


@pytest.mark.parametrize(
    "body", [{"content": 1}, {"content": "a", "add_special": 1}, {"content": [None]}]
)
def test_tokenize_refuses_wrong_types(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        tokenize_task(body, 100)


def test_pieces_that_are_no_text_are_bytes() -> None:
    message = Tokenized.of((1, 2), ("é".encode(), b"\xf0\x9f"))
    assert written(message, with_pieces=True) == [
        {"id": 1, "piece": "é"},
        {"id": 2, "piece": [240, 159]},
    ]


@pytest.mark.parametrize("n", [0, 1, 9_999, 10_000, 10_001, 30_000])
def test_many_tokens_are_written_in_parts(n: int) -> None:
    tokens = list(range(n))
    assert written(Tokenized.of(tokens), with_pieces=False) == tokens
    pieces = [str(token) for token in tokens]
    message = Tokenized.of(tokens, [piece.encode() for piece in pieces])
    assert [item["piece"] for item in written(message, with_pieces=True)] == pieces


def test_no_byte_of_the_pieces_is_written_twice_whatever_their_sizes() -> None:
    sizes = array("i", [3, -3, 3, -2, 9]).tobytes()
    message = Tokenized(tokens=array("i", range(5)).tobytes(), pieces=b"abcdef", sizes=sizes)
    items = written(message, with_pieces=True)
    assert "".join(item["piece"] for item in items) == "abcdef"


def written(message: Tokenized, *, with_pieces: bool) -> list[Any]:
    answer = orjson.loads(orjson.dumps(tokenized(message, with_pieces=with_pieces)))
    return list(answer["tokens"])


@pytest.mark.parametrize("tokens", ["a", [1, "a"], [100], [-1], {}])
def test_detokenize_refuses_what_is_no_token(tokens: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        detokenize_task({"tokens": tokens}, 100)
    assert caught.value.param == "tokens"
