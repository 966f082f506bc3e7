"""Choosing tokens on several threads: the same tokens, in order, and only where it pays."""

import threading

import pytest

from worker.llama.sampling.sampler_threads import HANDOVER_S, SampleJob, SamplerThreads


def crew_of(n_threads: int, one_s: float = 1.0) -> tuple[SamplerThreads, set[str]]:
    seen: set[str] = set()

    def choose(chain: int, index: int) -> int:
        seen.add(threading.current_thread().name)
        return chain * 100 + index

    crew = SamplerThreads(choose, n_threads)
    crew.one_s = one_s
    return crew, seen


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_the_tokens_come_in_the_order_of_the_jobs(n: int) -> None:
    crew, _ = crew_of(3)
    assert crew.choose([SampleJob(i, i) for i in range(n)]) == [i * 101 for i in range(n)]
    crew.close()


def test_the_engines_thread_takes_its_share() -> None:
    crew, seen = crew_of(2)
    crew.choose([SampleJob(i, i) for i in range(8)])
    assert threading.current_thread().name in seen
    assert any(name.startswith("sampling") for name in seen)
    crew.close()
    crew.close()


def test_threads_are_used_only_where_they_save_more_than_they_cost() -> None:
    crew, _ = crew_of(4, one_s=HANDOVER_S)
    assert crew.is_faster(4)
    assert not crew.is_faster(1)
    assert not crew_of(1)[0].is_faster(100)
    assert not crew_of(4, one_s=0.0)[0].is_faster(100)
    assert not crew_of(4, one_s=HANDOVER_S / 10)[0].is_faster(4)
    assert crew_of(4, one_s=HANDOVER_S / 10)[0].is_faster(32)


def test_it_learns_what_a_choice_takes() -> None:
    crew, _ = crew_of(2, one_s=0.0)
    crew.learn(0.5)
    assert crew.one_s == 0.5
    crew.choose([SampleJob(1, 2), SampleJob(3, 4)])
    assert 0.0 < crew.one_s < 0.5
    crew.close()


def test_what_goes_wrong_on_a_thread_is_raised_here() -> None:
    def choose(chain: int, index: int) -> int:
        if index == 3:
            raise ValueError(index)
        return index

    crew = SamplerThreads(choose, 2)
    with pytest.raises(ValueError, match="3"):
        crew.choose([SampleJob(0, i) for i in range(4)])
    crew.close()
