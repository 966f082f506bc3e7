"""The order and the budgets of an infill's prompt."""

from dataclasses import replace

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Generate, Infill
from protocol.wire.sampling import SamplingParams
from tests.worker.prompt.read_task import read_task
from worker.engine.backend import SpecialTokens, Vocabulary
from worker.engine.fake.backend import FakeBackend
from worker.prompt.infill import InfillRules, check_infill, infill_prompt
from worker.prompt.prompt import PromptReader

PRE, SUF, MID, REP, SEP, BOS = "PSMRFB"
_NAMED = PRE + SUF + MID + REP + SEP + BOS
RULES = InfillRules(n_batch=64, n_ctx=4096, n_predict=-1)
GAP = Infill(prefix="before", suffix="after")


def vocabulary(*, with_files: bool = False, adds_space: bool = False) -> Vocabulary:
    """Tokens are characters; the special ones are capital letters."""
    pieces = [bytes([i]) for i in range(128)] + [b" "] * adds_space
    special = SpecialTokens(bos=ord(BOS), fim_pre=ord(PRE), fim_suf=ord(SUF), fim_mid=ord(MID))
    if with_files:
        special = special._replace(fim_rep=ord(REP), fim_sep=ord(SEP))
    is_eog = [False] * len(pieces)
    return Vocabulary(pieces, pieces, is_eog, add_bos=True, special=special, adds_space=adds_space)


def characters(text: str) -> list[int]:
    return [ord(char) for char in text]


def written(gap: Infill, rules: InfillRules = RULES, prefix: str = "", **kind: bool) -> str:
    """Return the prompt as text."""
    tokens = infill_prompt(gap, characters(prefix), vocabulary(**kind), characters, rules)
    return "".join(map(chr, tokens))


def test_the_prefix_comes_first_and_the_gap_last() -> None:
    assert written(GAP) == "BPbeforeSafterM"


def test_tokens_among_the_texts_stay_as_they_are() -> None:
    gap = Infill(prefix=("be", ord("f"), "ore"), suffix=(ord("a"), ord("f"), "ter"))
    assert written(gap) == written(GAP)
    assert written(Infill(prefix=(), suffix=())) == "BPSM"


def test_some_models_want_the_suffix_first() -> None:
    assert written(GAP, replace(RULES, suffix_first=True)) == "BSafterPbeforeM"


def test_what_the_gap_begins_with_stands_after_the_prefix() -> None:
    assert written(GAP, prefix="start") == "BPbeforestartSafterM"


def test_other_files_stand_before_everything() -> None:
    gap = replace(GAP, extra=(("a.py", "x=1"), ("b.py", "y=2")))
    assert written(gap, with_files=True) == (
        "Rmyproject\nFa.py\nx=1Fb.py\ny=2Ffilename\nBPbeforeSafterM"
    )
    assert written(gap) == ("\n\n--- snippet ---\n\nx=1\n\n--- snippet ---\n\ny=2BPbeforeSafterM")
    assert written(GAP, with_files=True) == "Rmyproject\nFfilename\nBPbeforeSafterM"


def test_a_long_prefix_keeps_its_end_and_a_long_suffix_its_beginning() -> None:
    gap = Infill(prefix="p" * 99 + "q" * 48, suffix="s" * 14 + "t" * 99)
    assert written(gap) == f"BP{'q' * 48}S{'s' * 14}M"
    assert written(gap, prefix="abc") == f"BP{'q' * 48}abcS{'s' * 11}M"


def test_other_files_get_what_the_texts_leave_and_keep_their_end() -> None:
    gap = replace(GAP, extra=(("f", "x" * 5000 + "y" * 100),))
    text = written(gap, replace(RULES, n_ctx=164, n_predict=0), with_files=True)
    n_extra = 164 - 64
    assert text == ("y" * 100 + "Ffilename\n")[-n_extra:] + "BPbeforeSafterM"


def test_texts_that_overflow_the_context_are_cut_shorter() -> None:
    gap = Infill(prefix="p" * 500, suffix="s" * 500)
    text = written(gap, InfillRules(n_batch=512, n_ctx=256, n_predict=32))
    assert len(text) <= 256 - 32 + 4
    assert text.startswith("BPp")
    assert text.endswith("sM")


@pytest.mark.parametrize("suffix", ["after", " after"])
def test_a_space_that_only_the_tokenizer_sees_does_not_close_the_gap(suffix: str) -> None:
    """Such tokenizers put a space before every text; the suffix keeps the one that it has."""

    def spaced(text: str) -> list[int]:
        return [128, *characters(text)] if text else []

    tokens = infill_prompt(
        Infill(prefix="", suffix=suffix), [], vocabulary(adds_space=True), spaced, RULES
    )
    pieces = vocabulary(adds_space=True).pieces
    assert b"".join(pieces[token] for token in tokens).decode() == f"BPS{suffix}M"


def test_a_model_without_the_tokens_is_refused_before_anything_is_read() -> None:
    bare = replace(vocabulary(), special=SpecialTokens(fim_mid=5))
    with pytest.raises(TaskError) as caught:
        check_infill(bare)
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    assert "prefix, suffix" in caught.value.message


def test_the_reader_lays_a_gap_out_as_the_worker_is_configured() -> None:
    config = WorkerConfig(backend="fake", n_ctx=1024, spm_infill=True)
    reader = PromptReader(FakeBackend(config), cuts_long=False)
    message = Generate(prompt="", infill=GAP, params=SamplingParams())
    task = read_task(reader, message)
    assert bytes(token for token in task.prompt if token < 256).endswith(b"\x02after\x01before\x03")
    assert task.text.endswith("before\x03")


def test_texts_that_are_longer_than_the_context_are_cut() -> None:
    reader = PromptReader(FakeBackend(WorkerConfig(backend="fake", n_ctx=64)), cuts_long=False)
    long = "x" * 100_000
    gap = Infill(prefix=long, suffix=(long, 97), extra=(("a.py", long),))
    task = read_task(reader, Generate(prompt="", infill=gap, params=SamplingParams()))
    assert 32 <= len(task.prompt) < 64


def test_a_token_that_the_vocabulary_lacks_is_refused() -> None:
    reader = PromptReader(FakeBackend(WorkerConfig(backend="fake")), cuts_long=False)
    gap = Infill(prefix=("a", 10**6), suffix="")
    with pytest.raises(TaskError, match="Prompt contains invalid tokens"):
        read_task(reader, Generate(prompt="", infill=gap, params=SamplingParams()))
