"""The real llama.cpp with the real default model: texts, sampling, guards."""

import math
from typing import Any

import pytest

from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Finish
from protocol.wire.sampling import SamplingParams
from tests.cores import threads
from tests.models.shallow import shallow_path
from tests.worker.conftest import serving
from tests.worker.served import Served, is_plausible
from worker.engine.backend import BatchRow

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

STORY = "Once upon a time there was"
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
PROMPTS = [f"The number {word} is" for word in NUMBERS]


def test_greedy_text_equals_llama_cpp_pythons_own(single: Served) -> None:
    from llama_cpp import Llama

    settings = {"n_ctx": 512, "n_threads": threads(), "n_threads_batch": threads()}
    # On the same device as ours: another one rounds otherwise.
    llama = Llama(shallow_path(), n_gpu_layers=-1, verbose=False, **settings)
    for prompt in (STORY, "The capital of France is", "def fibonacci(n):\n"):
        theirs = llama(prompt, max_tokens=32, temperature=0)["choices"][0]["text"]
        assert single.ask(prompt, n_predict=32, cache_prompt=False).text == theirs
    llama.close()


def test_eight_streams_at_once_each_continue_their_own_prompt(
    single: Served, served: Served
) -> None:
    together = served.ask_all(PROMPTS, n_predict=12, cache_prompt=False)
    for prompt, answer in zip(PROMPTS, together, strict=True):
        is_plausible(single, prompt, answer)


@pytest.mark.cpu
def test_a_cached_prefix_gives_the_same_text_as_reading_it_again(single: Served) -> None:
    """Two tokens or more are read on top; a lone token takes llama.cpp's one-row kernels."""
    prefix = STORY + " a very old house at the end of the street, and in it lived"
    single.ask(prefix + " nobody", cache_prompt=False)
    again = single.ask(prefix + " a witch who")
    fresh = single.ask(prefix + " a witch who", cache_prompt=False)
    assert again.done.n_cached == len(single.tokenize(prefix))
    assert again.text == fresh.text


def test_a_seed_reproduces_its_text_and_another_does_not(single: Served) -> None:
    texts = [
        single.ask(STORY, seed=seed, temperature=1.2, n_predict=24, cache_prompt=False).text
        for seed in (42, 42, 43)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_utf8_comes_whole_whatever_the_tokens(single: Served) -> None:
    text = "naïve café 😀 日本語 🏳️‍🌈"
    tokens = single.backend.tokenize(text, add_special=False, parse_special=False)
    assert len(tokens) > len(text.split())
    assert single.backend.vocabulary.render(tokens) == text


def test_a_stop_string_across_token_borders_is_cut_out(single: Served) -> None:
    whole = single.ask(STORY, n_predict=24).text
    stop = whole[7:16]
    answer = single.ask(STORY, n_predict=24, stop=[stop])
    assert answer.text == whole[: whole.index(stop)]
    assert answer.done.finish is Finish.WORD
    assert answer.done.stopping_word == stop


@pytest.mark.parametrize(
    "params",
    [
        {"mirostat": 1},
        {"mirostat": 2},
        {"tfs_z": 0.9},
        {"repeat_penalty": 1.3, "penalize_nl": False},
        {"repeat_penalty": 1.3, "penalty_prompt": "time time time"},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repeat_last_n": -1},
        {"dry_multiplier": 0.8, "dry_penalty_last_n": -1},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"typical_p": 0.5},
        {"top_n_sigma": 1.0},
        {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
        {"samplers": ["adaptive_p"], "adaptive_target": 0.5},
        {"samplers": "kt", "top_k": 5},
        {"logit_bias": [[" a", False], [" an", -100]]},
        {"min_keep": 5, "top_p": 0.01},
        {"temperature": 0.0, "top_k": 1},
    ],
    ids="+".join,
)
def test_every_sampler_stage_runs_and_reproduces(single: Served, params: dict[str, Any]) -> None:
    values = {"temperature": 0.8, "seed": 7, "n_predict": 12, "cache_prompt": False} | params
    first, second = single.ask(STORY, **values), single.ask(STORY, **values)
    assert first.text == second.text != ""


def test_a_stage_that_is_on_changes_the_text(single: Served) -> None:
    base: dict[str, Any] = {"seed": 7, "temperature": 1.5, "n_predict": 24, "cache_prompt": False}
    plain = single.ask(STORY, **base).text
    for change in ({"tfs_z": 0.3}, {"top_k": 2}, {"min_p": 0.5}, {"mirostat": 2}):
        assert single.ask(STORY, **(base | change)).text != plain, change


def test_a_banned_token_never_comes(single: Served) -> None:
    first = single.ask(STORY, n_predict=1).tokens[0]
    banned = single.ask(STORY, n_predict=1, logit_bias={str(first): False}).tokens[0]
    assert banned != first


def test_penalize_nl_false_leaves_the_newline_alone(fluent: Served) -> None:
    prompt = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\n"
    base: dict[str, Any] = {"temperature": 0, "n_predict": 6, "repeat_penalty": 1.0}
    heavy = base | {"repeat_penalty": 100.0, "repeat_last_n": -1}
    assert "\n" in fluent.ask(prompt, **base).text
    assert "\n" not in fluent.ask(prompt, **heavy).text
    assert "\n" in fluent.ask(prompt, **heavy, penalize_nl=False).text


def test_a_grammar_is_followed(single: Served) -> None:
    answer = single.ask("Is water wet?", grammar='root ::= "yes" | "no"', temperature=1.0)
    assert answer.text in {"yes", "no"}
    assert answer.done.finish is Finish.EOS


def test_a_grammar_with_every_end_forbidden_ends_without_abort(single: Served) -> None:
    answer = single.ask("Is water wet?", grammar='root ::= "yes"', ignore_eos=True)
    assert answer.text == "yes"


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": "no-root ::= [a-z]"}, "grammar"),
        ({"grammar": "root ::= undefined"}, "grammar"),
        ({"logit_bias": [[10**6, 1]]}, "logit_bias"),
        ({"repeat_penalty": 1.1, "penalty_prompt": [10**6]}, "penalty_prompt"),
    ],
)
def test_what_llama_cpp_would_choke_on_is_refused(
    single: Served, params: dict[str, Any], param: str
) -> None:
    failed = single.ask(STORY, **params).failed
    assert (failed.code, failed.param) == (ErrorCode.INVALID_REQUEST, param)


def test_probabilities_are_those_of_the_model(single: Served) -> None:
    answer = single.ask(STORY, n_probs=3, n_predict=4)
    for token, prob in zip(answer.tokens, answer.probs, strict=True):
        assert prob.id == token == prob.top[0][0]
        assert len(prob.top) == 3
        assert sum(math.exp(p) for _, _, p in prob.top) < 1.0
        assert prob.p == prob.top[0][2] < 0.0
    assert "".join(prob.piece.decode() for prob in answer.probs) == answer.text


def test_a_text_is_as_likely_as_a_prompt_as_it_was_when_it_was_chosen(single: Served) -> None:
    answer = single.ask(STORY, n_probs=2, n_predict=40, ignore_eos=True)
    start = single.tokenize(STORY)
    again = single.ask(
        start + answer.tokens, n_probs=2, n_predict=0, echo_from=1, cache_prompt=False
    ).prompt
    assert len(again) == len(start) - 1 + len(answer.tokens)
    told = again[len(start) - 1 :]
    assert [one.id for one in told] == answer.tokens
    gaps = [abs(one.p - other.p) for one, other in zip(told, answer.probs, strict=True)]
    assert sum(gaps) / len(gaps) < 0.1, "a CPU's kernels differ by the size of a batch, a little"


def test_probabilities_after_sampling_add_up_to_one(single: Served) -> None:
    answer = single.ask(
        STORY, n_probs=40, post_sampling_probs=True, temperature=0.7, top_k=5, n_predict=3
    )
    for prob in answer.probs:
        assert math.isclose(sum(p for _, _, p in prob.top), 1.0, rel_tol=1e-4)
        assert len(prob.top) <= 5
        assert prob.p > 0


def test_a_full_context_ends_with_limit(single: Served) -> None:
    prompt = single.tokenize("word " * 400)[:500]
    done = single.ask(prompt, n_predict=-1, ignore_eos=True).done
    assert (done.finish, done.truncated) == (Finish.LIMIT, True)
    assert done.n_prompt + done.n_predicted == 512


def test_a_very_long_text_is_tokenized_without_overflowing_the_stack(single: Served) -> None:
    tokens = single.backend.tokenize("ab " * 400_000, add_special=False, parse_special=True)
    assert len(tokens) > 100_000


def test_sampler_of_a_bad_request_leaks_nothing(single: Served) -> None:
    params = SamplingParams(grammar="root ::= (")
    with pytest.raises(TaskError):
        single.backend.open_sampler(params, [1, 2, 3])


def test_decoding_lasts_until_the_logits_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU `llama_decode` returns before; its time would count as a gap between two steps."""
    import llama_cpp.llama_cpp as lib

    waits: list[object] = []
    with serving(1) as own:  # whose engine need not know what is read here
        monkeypatch.setattr(lib, "llama_synchronize", waits.append)
        own.backend.decode([BatchRow(0, 0, [1, 2, 3], wants_logits=False)])
        assert not waits, "the next piece of a prompt is prepared meanwhile"
        own.backend.decode([BatchRow(0, 3, [4], wants_logits=True)])
        assert waits == [own.backend._context]


def test_most_of_a_step_is_spent_in_llama_cpp(served: Served) -> None:
    before = served.engine.heartbeat().stats
    served.ask_all(PROMPTS, n_predict=32, cache_prompt=False)
    after = served.engine.heartbeat().stats
    assert after.step_s > before.step_s
    assert after.decode_s - before.decode_s < after.step_s - before.step_s
