"""Choosing tokens on several threads, with the real library."""

from collections.abc import Sequence

import pytest

from tests.worker.served import Served
from worker.llama.sampling.sampler_threads import SampleJob

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

PROMPTS = [f"My {n}. favourite number is" for n in range(8)]


def test_threads_choose_what_each_chain_would_have_chosen_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llama_cpp.llama_cpp as lib

    crew, context = served.backend._sampler_threads, served.backend._context
    choose, n_chosen = crew.choose, 0

    def watched(jobs: Sequence[SampleJob]) -> list[int]:
        nonlocal n_chosen
        twins = [lib.llama_sampler_clone(job.chain) for job in jobs]
        expected = [
            int(lib.llama_sampler_sample(twin, context, job.position))
            for twin, job in zip(twins, jobs, strict=True)
        ]
        for twin in twins:
            lib.llama_sampler_free(twin)
        assert choose(jobs) == expected
        n_chosen += len(expected)
        return expected

    monkeypatch.setattr(crew, "_n_threads", 2)  # on a CPU there are no threads
    monkeypatch.setattr(crew, "choose", watched)
    monkeypatch.setattr(crew, "is_faster", lambda n: n > 1)
    answers = served.ask_all(PROMPTS, temperature=1.0, top_k=0, seed=7, n_predict=12)
    assert all(answer.done.n_predicted for answer in answers)
    assert n_chosen > 40


def test_what_a_choice_takes_is_learnt(served: Served) -> None:
    served.ask(PROMPTS[0], temperature=1.0, n_predict=4)
    assert 0.0 < served.backend._sampler_threads.one_s < 0.1
    assert not served.backend._sampler_threads.is_faster(8), "never on a CPU"
