"""Loads are drawn from a seed: the same everywhere, and of the lengths that were asked for."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench.lengths import SHAREGPT_PROMPT, SHAREGPT_REPLY, Lengths, parse
from gateway.bench.plan import LoadShape, conversation
from gateway.bench.prompts import prompts_in
from gateway.bench.words import WORDS, drawn, text


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("128", Lengths(128, 128)),
        ("fixed:7", Lengths(7, 7)),
        ("uniform:8-64", Lengths(8, 64)),
        ("lognormal:32,0.5", Lengths(1, 1_000_000, 32.0, 0.5)),
        ("lognormal:32,0.5,99", Lengths(1, 99, 32.0, 0.5)),
        ("sharegpt", SHAREGPT_PROMPT),
    ],
)
def test_lengths_are_read(written: str, expected: Lengths) -> None:
    assert parse(written) == expected
    assert parse("sharegpt", SHAREGPT_REPLY) == SHAREGPT_REPLY


@pytest.mark.parametrize(
    "written",
    [
        *("", "0", "-3", "x", "99999999", "sharegpt:3", "uniform:9-3", "uniform:3"),
        *("lognormal:3", "lognormal:0,1", "lognormal:3,-1", "lognormal:nan,1", "lognormal:3,inf"),
    ],
)
def test_a_wrong_length_is_refused_with_what_may_stand_there(written: str) -> None:
    with pytest.raises(ValueError, match="is no length; valid are N"):
        parse(written)


@given(low=st.integers(1, 500), more=st.integers(0, 500), seed=st.integers())
def test_lengths_stay_within_their_bounds(low: int, more: int, seed: int) -> None:
    for lengths in (Lengths(low, low + more), Lengths(low, low + more, float(low), 2.0)):
        assert low <= lengths.draw(drawn(seed)) <= low + more


def test_log_normal_lengths_have_their_median() -> None:
    rng = drawn("median")
    found = sorted(Lengths(1, 10_000, 100.0, 0.8).draw(rng) for _ in range(2001))
    assert 90 < found[1000] < 110
    assert found[1800] > 200  # e^(0.8 * 1.28) times the median


def test_texts_have_as_many_words_as_asked_for() -> None:
    assert len(text(drawn(1), 300).split()) == 300
    assert text(drawn(1), 0) == ""
    assert len(WORDS) > 400 and all(word.isalpha() for word in WORDS)


def test_a_conversation_is_the_same_for_the_same_seed_and_number() -> None:
    shape = LoadShape(prompt=Lengths(5, 50), output=Lengths(5, 50), shared_prefix=20, turns=3)
    assert conversation(shape, 1, 7) == conversation(shape, 1, 7)
    assert conversation(shape, 1, 7).asks != conversation(shape, 1, 8).asks
    assert conversation(shape, 1, 7).asks != conversation(shape, 2, 7).asks
    assert conversation(shape, 1, 7).asks != conversation(shape, 1, 7, "warmup").asks


def test_a_group_shares_its_beginning_and_no_other() -> None:
    shape = LoadShape(shared_prefix=50, groups=3)
    systems = [conversation(shape, 1, index).system for index in range(6)]
    assert systems[:3] == systems[3:]
    assert len(set(systems)) == 3
    assert all(len(system.split()) == 50 for system in systems)


def test_prompts_of_a_file_are_taken_in_turn() -> None:
    shape = LoadShape(prompts=("a", "b", "c"), turns=2)
    asked = [ask.inputs for index in range(3) for ask in conversation(shape, 1, index).asks]
    assert asked == [("a",), ("b",), ("c",), ("a",), ("b",), ("c",)]


def test_a_batch_holds_as_many_inputs() -> None:
    (ask,) = conversation(LoadShape(prompt=Lengths(3, 3), batch=4), 1, 0).asks
    assert [len(one.split()) for one in ask.inputs] == [3, 3, 3, 3]
    assert len(set(ask.inputs)) == 4


def test_files_of_prompts_are_lines_or_objects(tmp_path: Path) -> None:
    plain, objects = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("one\n\ntwo\n")
    objects.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    assert prompts_in(plain) == prompts_in(objects) == ("one", "two")


@pytest.mark.parametrize("content", ["", "{", '{"x": "y"}', "[]"])
def test_a_file_without_prompts_is_refused_by_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"c\.jsonl"):
        prompts_in(path)
