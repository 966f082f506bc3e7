"""Answers that another worker began: whatever the cut, both parts are the answer in one piece."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.wire.messages import Delta, Done, Finish, Started, TaskKey
from protocol.wire.partial_answer import PartialAnswer
from tests.examples import examples
from tests.worker.engines import Rig
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.fake.backend import EOS
from worker.engine.fake.sampler import FakeSampler
from worker.engine.resume import resume_task
from worker.engine.speculation.lookup import PromptLookup
from worker.engine.task import EngineTask, Submit

CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1, "seed": 7},
    "unseeded": {"temperature": 1},
    "a state of the sampler": {"temperature": 1, "seed": 7, "mirostat": 2},
    "end of text": {"prompt": "[[eos 9]]", "n_predict": 50},
    "stop string": {"prompt": "[[say one two three STOP four]]", "stop": ["STOP"], "n_predict": 50},
    "half a stop string": {"prompt": "[[say one STO STOP]]", "stop": ["STOP"], "n_predict": 50},
    "characters of several bytes": {"prompt": "[[say grüße €uro 🙂!]]", "n_predict": 50},
    "indentation": {"prompt": "[[say  a\n  b\nc\n d]]", "n_indent": 1, "n_predict": 50},
    "a line break": {"prompt": "[[say a\nb]]", "n_predict": 50},
    "probabilities": {"n_probs": 2},
    "not streamed": {"stream": False, "n_predict": 20},
    "a full context": {"prompt": "x" * 40, "n_predict": -1, "rig": {"n_ctx": 64}},
    "a bias": {"logit_bias": [[5, 1.0]]},
}


def tokens_of(deltas: Sequence[Delta]) -> list[int]:
    """All tokens of deltas."""
    return [token for delta in deltas for token in delta.tokens]


class Cut:
    """One answer in one piece, and its deltas token by token."""

    def __init__(self, rig: Rig, prompt: str, **params: Any) -> None:
        self.task = rig.task(prompt, **params)
        rig.engine.submit(Submit(self.task))
        rig.finish()
        messages = rig.of(self.task.key.id)
        self.started = next(message for message in messages if isinstance(message, Started))
        self.deltas = [message for message in messages if isinstance(message, Delta)]
        self.tokens = tokens_of(self.deltas)
        self.text = "".join(delta.text for delta in self.deltas)
        self.done = rig.done(self.task.key.id)

    def partial(self, n: int) -> PartialAnswer:
        """What a client has after the n-th delta."""
        said = self.deltas[:n]
        return PartialAnswer(
            tokens=tuple(tokens_of(said)),
            n_text=sum(len(delta.text) for delta in said),
            seed=self.started.seed,
            sampler_state=said[-1].sampler_state if said else (),
            n_cached=self.started.n_cached,
        )


def rest(rig: Rig, task: EngineTask, partial: PartialAnswer) -> tuple[list[Delta], Done]:
    """Let another worker go on."""
    key = TaskKey(task.key.id, 1)
    again = resume_task(replace(task, key=key), partial, rig.backend.vocabulary)
    n_before = len(rig.envelopes)
    rig.engine.submit(Submit(again))
    rig.finish()
    said = [envelope.payload for envelope in rig.envelopes[n_before:] if envelope.task == key]
    done = said[-1]
    assert isinstance(done, Done), done
    assert isinstance(said[0], Started)
    return [message for message in said if isinstance(message, Delta)], done


def same(done: Done, other: Done) -> bool:
    """Return whether two ends say the same, but for what took how long and where."""
    fields = (
        *("finish", "stopping_word", "truncated", "has_new_line", "n_prompt", "n_cached"),
        *("n_predicted", "biases", "stops", "backend_sampling"),
    )
    return all(getattr(done, name) == getattr(other, name) for name in fields)


@pytest.mark.parametrize("case", CASES)
def test_a_cut_after_any_token_changes_nothing(case: str) -> None:
    params = dict(CASES[case])
    options, prompt = params.pop("rig", {}), params.pop("prompt", "abc")
    whole = Cut(Rig(**options), prompt, **params)
    assert len(whole.tokens) > 3
    for n in range(1, len(whole.deltas) + 1):
        partial = whole.partial(n)
        deltas, done = rest(Rig(**options), whole.task, partial)
        said = [*whole.deltas[:n], *deltas]
        assert "".join(delta.text for delta in said) == whole.text, n
        assert tokens_of(said) == whole.tokens, n
        assert [prob for delta in said for prob in delta.probs] == [
            prob for delta in whole.deltas for prob in delta.probs
        ]
        assert deltas == [] or deltas[-1].n_predicted == whole.done.n_predicted
        assert same(done, whole.done), n


def test_an_answer_is_cut_again_and_again() -> None:
    whole = Cut(Rig(), "abc", temperature=1, seed=3, mirostat=1, n_predict=30)
    said: list[Delta] = []
    for _ in range(30):
        partial = PartialAnswer(
            tokens=tuple(tokens_of(said)),
            seed=whole.started.seed,
            sampler_state=said[-1].sampler_state if said else (),
        )
        deltas, _done = rest(Rig(), whole.task, partial)
        said.append(deltas[0])
    assert tokens_of(said) == whole.tokens


def test_the_state_of_the_sampler_is_needed() -> None:
    whole = Cut(Rig(), "abc", temperature=1, seed=7, mirostat=2, n_predict=20)
    deltas, _ = rest(Rig(), whole.task, replace(whole.partial(5), sampler_state=()))
    assert [delta.tokens for delta in deltas] != [delta.tokens for delta in whole.deltas[5:]]


@pytest.mark.parametrize("n_keep", [0, 3, -1])
@pytest.mark.parametrize("n_discard", [0, 5])
def test_contexts_are_shifted_where_they_would_have_been(n_keep: int, n_discard: int) -> None:
    options: dict[str, Any] = {"n_ctx": 48, "context_shift": True}
    params = {"n_keep": n_keep, "n_discard": n_discard, "n_predict": 90}
    whole = Cut(Rig(**options), "abcdefgh", **params)
    assert whole.done.truncated
    for n in (1, 30, 39, 40, 41, 42, 60, 61, 62, 75, 89, 90):
        deltas, done = rest(Rig(**options), whole.task, whole.partial(n))
        said = tokens_of([*whole.deltas[:n], *deltas])
        assert said == whole.tokens, n
        assert same(done, whole.done), n
        assert done.n_past == whole.done.n_past or n == 90


def test_an_answer_without_a_limit_ends_at_the_training_length() -> None:
    options: dict[str, Any] = {"n_ctx": 48, "n_slots": 2, "context_shift": True}
    whole = Cut(Rig(**options), "abc", n_predict=-1)
    assert whole.done.finish is Finish.LIMIT
    for n in range(len(whole.tokens) - 3, len(whole.tokens) + 1):
        deltas, done = rest(Rig(**options), whole.task, whole.partial(n))
        assert len(deltas) == len(whole.tokens) - n
        assert same(done, whole.done)


def test_positions_are_shared_where_they_would_have_been() -> None:
    options: dict[str, Any] = {"n_ctx": 256, "self_extend": SelfExtend(n=4, width=16)}
    whole = Cut(Rig(**options), "abcdefgh" * 3, n_predict=60)
    for n in (1, 5, 13, 14, 15, 16, 17, 40, 59):
        deltas, done = rest(Rig(**options), whole.task, whole.partial(n))
        said = tokens_of([*whole.deltas[:n], *deltas])
        assert said == whole.tokens, n
        assert done.n_past == whole.done.n_past


def test_what_was_generated_before_is_read_in_few_steps_and_shared() -> None:
    whole = Cut(Rig(), "abcdefgh", n_predict=200)
    rig = Rig(n_batch=512)
    partial = whole.partial(150)
    rest(rig, whole.task, partial)
    n_alone = rig.engine.counters.n_decode
    assert n_alone <= 50 + 4
    n_prompt = len(whole.task.prompt)
    assert rig.engine.counters.n_prompt == n_prompt + 149
    assert rig.engine.counters.n_predicted == 50
    rest(rig, whole.task, partial)  # all of it is cached now
    started = [message for message in rig.emitted if isinstance(message, Started)]
    assert [start.n_reread for start in started] == [n_prompt + 149, 1]
    assert [start.n_cached for start in started] == [0, n_prompt + 148]


def test_times_go_on() -> None:
    whole = Cut(Rig(), "abc", n_predict=6)
    partial = replace(whole.partial(3), prompt_ms=1000.0, predicted_ms=2000.0, n_cached=2)
    _, done = rest(Rig(), whole.task, partial)
    assert (done.timings.cache_n, done.timings.prompt_n) == (2, 2)
    assert done.timings.predicted_n == 6
    assert done.timings.prompt_ms == pytest.approx(1000.0)
    assert 2000.0 < done.timings.predicted_ms < 2500.0


def test_the_limit_of_time_counts_what_another_worker_spent() -> None:
    prompt = "[[say a\nb\nc\nd\ne\nf]]"
    whole = Cut(Rig(), prompt, n_predict=50, t_max_predict_ms=60_000)
    assert whole.done.finish is Finish.EOS
    _, done = rest(Rig(), whole.task, replace(whole.partial(2), predicted_ms=60_000.0))
    assert (done.finish, done.n_predicted) == (Finish.LIMIT, 4)


def test_a_partial_answer_survives_a_preemption() -> None:
    options: dict[str, Any] = {"n_slots": 2, "n_cells": 800}
    whole = Cut(Rig(**options), "abc", n_predict=-1)
    rig = Rig(**options)
    rig.submit("x" * 100, n_predict=-1)
    rig.turn()
    again = resume_task(whole.task, whole.partial(20), rig.backend.vocabulary)
    rig.engine.submit(Submit(replace(again, key=TaskKey(50))))
    while not rig.engine.counters.n_preempted:
        rig.turn()
    rig.finish()
    deltas = [message for message in rig.of(50) if isinstance(message, Delta)]
    assert tokens_of([*whole.deltas[:20], *deltas]) == whole.tokens


def test_nothing_was_said_but_the_seed_is_known() -> None:
    rig = Rig()
    task = rig.task("abc", temperature=1, n_predict=12)
    seeded = Cut(Rig(), "abc", temperature=1, seed=99, n_predict=12)
    deltas, done = rest(rig, task, PartialAnswer(seed=99, n_cached=1))
    assert [delta.tokens for delta in deltas] == [delta.tokens for delta in seeded.deltas]
    assert done.n_cached == 1


@pytest.mark.parametrize(
    "partial",
    [
        PartialAnswer(tokens=(-1,)),
        PartialAnswer(tokens=(5000,)),
        PartialAnswer(tokens=(EOS, 97)),
        PartialAnswer(tokens=(97,), seed=2**32),
        PartialAnswer(tokens=(97,), n_text=-1),
        PartialAnswer(tokens=(97,), n_arguments=(3, -1)),
        PartialAnswer(tokens=(97,), predicted_ms=float("nan")),
        PartialAnswer(tokens=(97,), prompt_ms=-1.0),
    ],
)
def test_what_no_worker_can_have_said_is_refused(partial: PartialAnswer) -> None:
    rig = Rig()
    with pytest.raises(InvalidRequest, match=r"partial_answer|the answer ends") as refused:
        resume_task(rig.task("abc"), partial, rig.backend.vocabulary)
    assert (refused.value.param or "").startswith("partial_answer.")


def test_no_sampler_is_left_open() -> None:
    n_open = FakeSampler.open_count
    whole = Cut(Rig(), "[[say ab]]", n_predict=50)
    for n in range(1, len(whole.deltas) + 1):
        rest(Rig(), whole.task, whole.partial(n))
    assert FakeSampler.open_count == n_open


@given(
    cuts=st.lists(st.integers(0, 40), min_size=2, max_size=5),
    seed=st.integers(0, 9),
    mirostat=st.sampled_from([0, 2]),
    is_drafted=st.booleans(),
    cells=st.sampled_from([(0, 4), (0, 67), (600, 19), (600, 67)]),
)
@examples(60)
def test_in_company_they_go_on_too(
    cuts: list[int], seed: int, mirostat: int, is_drafted: bool, cells: tuple[int, int]
) -> None:
    """Choices of one prompt, cut in different places, and others that begin beside them."""
    params = {"temperature": 1, "seed": seed, "mirostat": mirostat, "n_predict": 40}
    whole = Cut(Rig(), "abcdefgh" * 4, **params)
    drafter = PromptLookup(1, 4) if is_drafted else None
    rig = Rig(n_slots=3, n_cells=cells[0], n_batch=cells[1], drafter=drafter)
    tasks = [
        replace(
            resume_task(whole.task, whole.partial(n), rig.backend.vocabulary), key=TaskKey(100 + i)
        )
        for i, n in enumerate(cuts)
    ]
    rig.engine.submit(Submit(tasks[0], tuple(tasks[1:])))
    other = rig.submit("abcdefgh" * 3, n_predict=30)
    rig.finish()
    assert rig.done(other).n_predicted == 30
    for task, n in zip(tasks, cuts, strict=True):
        deltas = [message for message in rig.of(task.key.id) if isinstance(message, Delta)]
        assert tokens_of([*whole.deltas[:n], *deltas]) == whole.tokens
        assert rig.done(task.key.id).n_predicted == 40


def test_images_are_read_again_and_then_what_was_said_of_them() -> None:
    def seen() -> tuple[Rig, EngineTask]:
        rig = Rig()
        tokens, media = rig.backend.read_media("see <__media__> well", [b"cat"])
        return rig, replace(rig.task("x", n_predict=20), prompt=tokens, media=media)

    rig, task = seen()
    rig.engine.submit(Submit(task))
    rig.finish()
    deltas = [message for message in rig.of(task.key.id) if isinstance(message, Delta)]
    for n in (1, 10, 19, 20):
        other, again = seen()
        partial = PartialAnswer(
            tokens=tuple(tokens_of(deltas[:n])), seed=rig.started(task.key.id).seed
        )
        rest_of_it, done = rest(other, again, partial)
        assert tokens_of([*deltas[:n], *rest_of_it]) == tokens_of(deltas)
        assert done.n_predicted == 20


def test_the_tokens_of_the_prompt_are_echoed_once() -> None:
    rig = Rig()
    task = replace(rig.task("abc", n_predict=5, n_probs=1), echo_from=1)
    rig.engine.submit(Submit(task))
    rig.finish()
    first = [message for message in rig.of(task.key.id) if isinstance(message, Delta)]
    assert first[0].prompt
    partial = PartialAnswer(tokens=tuple(tokens_of(first[:3])), seed=5, echoed=True)
    deltas, _ = rest(Rig(), task, partial)
    assert not any(delta.prompt for delta in deltas)
    deltas, _ = rest(Rig(), task, PartialAnswer(seed=5, echoed=True))
    assert not any(delta.prompt for delta in deltas)
