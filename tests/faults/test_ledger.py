"""What the suite calls lost, doubled and wrong, it finds where it is."""

import itertools

import pytest

from gateway.soak.answers import AnswerReader, is_repeated
from gateway.soak.asking import Ending, RequestOutcome
from gateway.soak.ledger import row_of, table
from gateway.soak.requests import KINDS, SoakRequest, Traffic, TrafficShape
from tests.faults.case import FaultCase, at_a_random_token


def outcome(parts: dict[str, str], ending: Ending = Ending.ANSWERED) -> RequestOutcome:
    request = SoakRequest("chat", 1, "/v1/chat/completions", {})
    return RequestOutcome(request, parts=parts, ending=ending)


@pytest.mark.parametrize(
    ("got", "is_it"),
    [("abcdef", False), ("abcabcdef", True), ("abcdefef", True), ("abXcdef", False), ("", False)],
)
def test_a_repeated_piece_is_told_from_a_wrong_one(got: str, is_it: bool) -> None:
    assert is_repeated(got, "abcdef") is is_it


@pytest.mark.parametrize(
    ("got", "ending"),
    [
        ("abcdef", Ending.ANSWERED),
        ("abcbcdef", Ending.DOUBLED),
        ("abdef", Ending.WRONG),
        ("abcdefg", Ending.WRONG),
    ],
)
def test_an_answer_is_judged_by_that_of_the_unbroken_run(got: str, ending: Ending) -> None:
    one = outcome({"0.text": got})
    one.compare({"0.text": "abcdef"})
    assert one.ending is ending


def test_an_answer_without_an_end_is_not_whole() -> None:
    reader = AnswerReader("/v1/chat/completions")
    assert reader.take(b'{"choices": [{"index": 0, "delta": {"content": "a"}}]}')
    was_whole = reader.is_whole
    end = b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}'
    reader.take(end)
    assert (was_whole, reader.is_whole, reader.is_doubled) == (False, True, False)
    reader.take(end)
    assert reader.is_doubled


def test_one_ended_choice_of_two_is_not_the_whole() -> None:
    reader = AnswerReader("/v1/chat/completions")
    reader.take(b'{"choices": [{"index": 1, "delta": {"content": "a"}}]}')
    reader.take(b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}')
    assert not reader.is_whole


def test_a_seed_draws_the_same_requests_and_every_kind() -> None:
    one, again, other = (Traffic(seed, TrafficShape()).requests() for seed in (3, 3, 4))
    assert one == again != other
    assert [request.kind for request in one] == list(KINDS)
    bodies = [request.body for request in one]
    assert sum(bool({"tools", "response_format", "seed", "n"} & {*body}) for body in bodies) >= 6


def test_a_model_is_not_asked_for_what_cannot_be_judged() -> None:
    kinds = {one.kind for one in Traffic(3, TrafficShape(is_fake=False)).requests()}
    assert {*KINDS} - kinds == {"completion-mirostat"}


def test_reasoning_and_log_probabilities_are_parts_of_an_answer() -> None:
    reader = AnswerReader("/v1/chat/completions")
    reader.take(b'{"choices": [{"index": 0, "delta": {"reasoning_content": "so"}}]}')
    probs = b'{"content": [{"token": "x"}, {"token": "y"}]}'
    reader.take(b'{"choices": [{"index": 0, "delta": {"content": "xy"}, "logprobs": %b}]}' % probs)
    assert reader.parts == {"0.text": "xy", "0.reasoning": "so", "0.probs": " x y"}


def test_a_row_is_well_only_if_nothing_went_wrong() -> None:
    good, refused = outcome({}), outcome({}, Ending.REFUSED)
    assert row_of("A1", "x", [good], []).is_well()
    assert not row_of("A1", "x", [refused], []).is_well()
    for ending in (Ending.LOST, Ending.WRONG, Ending.DOUBLED):
        assert not row_of("A1", "x", [outcome({}, ending)], []).is_well()
    assert not row_of("A1", "x", [good], ["slots"]).is_well()
    assert not row_of("A1", "x", [good], [], ["too late"]).is_well()
    assert "| A1 | x | 1 | 1 | 0 | 0 |" in table([row_of("A1", "x", [good], [])])


def test_a_case_allows_only_the_ends_that_it_names() -> None:
    rows = {ending: row_of("A1", "x", [outcome({}, ending)], []) for ending in Ending}
    for may_refuse, may_cut in itertools.product((False, True), repeat=2):
        case = FaultCase(
            name="A1", what="x", inject=at_a_random_token, may_refuse=may_refuse, may_cut=may_cut
        )
        allowed = {Ending.ANSWERED: True, Ending.REFUSED: may_refuse, Ending.LOST: may_cut}
        for ending, row in rows.items():
            assert case.passes(row) == allowed.get(ending, False)
