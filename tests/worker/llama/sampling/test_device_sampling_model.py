"""Back-end sampling with the real llama.cpp: the texts are those of the host."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from protocol.wire.messages import Delta, Done, Envelope, Finish, TaskKey
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read
from tests.worker.conftest import serving
from tests.worker.llama.test_speculation import REPEAT
from tests.worker.served import Served
from worker.engine.backend import BatchRow
from worker.engine.task import Abort, EngineTask, Submit

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

STORY = "Once upon a time there was"
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7}
ON_BOARD: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0, "logit_bias": [[" a", False], [" the", 3.5]]},
    SAMPLED,
    {"temperature": 1.5, "seed": 9, "top_k": 100, "top_p": 0.8, "min_p": 0.01},
    SAMPLED | {"top_p": 1.0, "min_p": 0.0},
    SAMPLED | {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    SAMPLED | {"temperature": 0, "repeat_penalty": 1.2, "repeat_last_n": -1},
    SAMPLED | {"ignore_eos": True, "logit_bias": [[" a", -2.0]]},
    SAMPLED | {"samplers": ["top_k", "top_p", "penalties", "temperature"], "repeat_penalty": 1.2},
    SAMPLED | {"samplers": "tk"},
)
ON_HOST: tuple[dict[str, Any], ...] = (
    SAMPLED | {"n_probs": 3},
    SAMPLED | {"n_probs": 3, "post_sampling_probs": True},
    SAMPLED | {"grammar": "root ::= [a-z ]+"},
    SAMPLED | {"reasoning_control": True, "reasoning_budget_start_tag": "<think>",
               "reasoning_budget_end_tags": ["</think>"]},
    SAMPLED | {"dry_multiplier": 0.8},
    SAMPLED | {"mirostat": 2},
    SAMPLED | {"tfs_z": 0.9},
    SAMPLED | {"top_k": 10_000_000},
    SAMPLED | {"top_k": 0},
    SAMPLED | {"min_p": 1.0},
)  # fmt: skip


@pytest.fixture(scope="module")
def four() -> Iterator[Served]:
    """Four slots and nothing beside them."""
    with serving(4, cache_branches=0) as four:
        yield four


def both(served: Served, prompt: str, **params: Any) -> tuple[Any, Any]:
    """Ask with and without back-end sampling."""
    asked = {"n_predict": 12, "cache_prompt": False} | params
    host, board = (served.ask(prompt, backend_sampling=on, **asked) for on in (False, True))
    assert not host.done.backend_sampling
    return host, board


@pytest.mark.parametrize("params", ON_BOARD, ids=str)
def test_a_text_from_the_device_is_that_of_the_host(single: Served, params: dict[str, Any]) -> None:
    host, board = both(single, STORY, **params)
    assert board.done.backend_sampling
    assert board.tokens == host.tokens


@pytest.mark.parametrize("params", ON_HOST, ids=str)
def test_what_the_device_cannot_do_is_done_on_the_host(
    single: Served, params: dict[str, Any]
) -> None:
    host, board = both(single, STORY, **params)
    assert not board.done.backend_sampling
    assert (board.tokens, board.probs) == (host.tokens, host.probs)
    assert not single.backend._device_sampling._chains


def test_slots_with_and_without_it_share_batches() -> None:
    """Each token must be the one that the same task without it has, whatever runs beside it."""
    tasks: list[dict[str, Any]] = [
        SAMPLED | {"backend_sampling": True},
        {"temperature": 0},
        {"temperature": 0, "backend_sampling": True, "repeat_penalty": 1.2},
        SAMPLED | {"n_probs": 2},
    ]
    prompts = [f"{STORY} a {word}" for word in ("king", "ship", "robot", "tree")]
    together = {"cache_prompt": False, "n_predict": 16}
    asked = [(prompt, params | together) for prompt, params in zip(prompts, tasks, strict=True)]
    # Each on a model just loaded: where cells lie decides how attention rounds.
    with serving(4, cache_branches=0) as fresh:
        mixed = fresh.ask_each(asked)
    with serving(4, cache_branches=0) as fresh:
        hosts = fresh.ask_each([(one, dict(p, backend_sampling=False)) for one, p in asked])
    assert [answer.done.backend_sampling for answer in mixed] == [True, False, True, False]
    assert [answer.tokens for answer in mixed] == [answer.tokens for answer in hosts]


def test_choices_of_one_prompt_draw_their_own_first_tokens(four: Served) -> None:
    """They begin from one row; a token chosen there by one chain would be everybody's."""
    prompt = f"{STORY} a very old house by the sea"
    # Both runs find it cached then; on a GPU a batch with all of it rounds otherwise.
    four.ask_all([prompt] * 4, n_predict=1)
    firsts = []
    for on in (False, True):
        params = {"temperature": 2.0, "n_predict": 3, "backend_sampling": on}
        asked = [(prompt, params | {"seed": seed}) for seed in range(4)]
        firsts.append([answer.tokens[0] for answer in four.ask_each(asked)])
    assert firsts[0] == firsts[1]
    assert len(set(firsts[1])) > 1


def test_a_slot_is_used_again_after_cancelled_and_finished_tasks(single: Served) -> None:
    host, _ = both(single, STORY, **SAMPLED)
    for _ in range(2):
        cancel_in_the_middle(single)
        assert not single.backend._device_sampling._chains
        for answer in both(single, STORY, **SAMPLED):
            assert answer.tokens == host.tokens


def test_all_slots_may_be_cancelled_and_sample_on_the_host_after_it(four: Served) -> None:
    cancel_in_the_middle(four)
    assert not four.backend._device_sampling._chains
    answers = four.ask_all([STORY] * 4, n_predict=8, n_probs=1)
    assert all(one.id == one.top[0][0] for answer in answers for one in answer.probs)


def cancel_in_the_middle(served: Served) -> None:
    """Begin a task in each slot, and abort each when its tokens come from the device."""
    fields = SAMPLED | {"ignore_eos": True, "backend_sampling": True, "stream": True}
    params = read(SamplingParams(), fields)
    ids = [next(served._ids) for _ in served.engine.slots]
    for slot, task_id in enumerate(ids):
        prompt = served.tokenize(f"{STORY} {task_id}")
        served.engine.submit(Submit(EngineTask(TaskKey(task_id), prompt, params, slot=slot)))
    n_left = dict.fromkeys(ids, 4)
    while n_left:
        for item in served._emitted.get(timeout=60):
            if not isinstance(item, Envelope):
                continue
            message, task_id = item.payload, item.task.id
            if isinstance(message, Delta):
                n_left[task_id] -= 1
                if n_left[task_id] == 0:
                    served.engine.submit(Abort(item.task))
            elif isinstance(message, Done):
                assert message.finish is Finish.CANCELLED and message.backend_sampling
                del n_left[task_id]


def test_logits_on_the_device_that_are_not_numbers_are_found(
    single: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unseen, the device went on to choose the same token to the end of the answer."""
    backend, decode = single.backend, single.backend.decode
    n_decoded = 0

    def spoiled(rows: Sequence[BatchRow]) -> None:
        nonlocal n_decoded
        n_decoded += 1
        if n_decoded == 5:
            n_tokens = len(single.engine.slots[0].tokens)
            state = bytearray(backend.states.copy(0))
            state[-1000:] = b"\xff" * 1000  # NaN in 16 bits
            assert backend.states.put(0, state, n_tokens)
        decode(rows)

    for params in ({"temperature": 0}, SAMPLED):
        n_before, n_decoded = single.engine.counters.n_preempted, 0
        with monkeypatch.context() as patched:
            patched.setattr(backend, "decode", spoiled)
            answer = single.ask(STORY, backend_sampling=True, cache_prompt=False, **params)
        assert answer.done.backend_sampling
        assert single.engine.counters.n_preempted == n_before + 1  # it read its text again


def test_guesses_are_judged_by_tokens_from_the_device() -> None:
    with serving(1, spec_type=("ngram-simple",), spec_ngram_size_n=3, spec_ngram_size_m=8) as one:
        for params in ({"temperature": 0}, SAMPLED):
            host, board = both(one, REPEAT, n_predict=40, **params)
            assert board.done.backend_sampling
            assert board.tokens == host.tokens
            n_accepted = host.done.timings.draft_n_accepted
            assert board.done.timings.draft_n_accepted == n_accepted > 0
