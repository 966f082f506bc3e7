"""Back-end sampling: which chains may go on board, and when they are attached and detached.

llama.cpp is not called: what it would have been told is looked at. Texts: test_llama_onboard.py.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read
from tests.worker.engines import Rig
from worker.engine.backend import BatchRow
from worker.engine.fake.sampler import FakeSampler
from worker.llama.sampling.chain import Chain
from worker.llama.sampling.device_sampling import Device, DeviceSampling, fits, open_device_sampling

SUPPRESSED = 99
DEVICE = Device(n_vocab=100, suppressed=(SUPPRESSED,))
BIAS = -float("inf")


def params_of(**fields: Any) -> SamplingParams:
    return read(SamplingParams(), {"backend_sampling": True, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0},
        {"temperature": 0, "top_k": 0, "min_keep": 5},
        {"top_p": 1.0, "min_p": 0.0},
        {"repeat_penalty": 1.3, "presence_penalty": 0.5, "repeat_last_n": -1},
        {"temperature": 0, "repeat_penalty": 1.3},
        {"samplers": ["temperature", "top_k", "min_p"]},
        {"dry_multiplier": 0.0, "xtc_probability": 0.5, "xtc_threshold": 0.6},
    ],
    ids=str,
)
def test_a_usual_chain_goes_on_board(fields: dict[str, Any]) -> None:
    assert fits(params_of(**fields), DEVICE, ((3, BIAS), (5, 2.5)))


@pytest.mark.parametrize(
    "fields",
    [
        {"mirostat": 2},
        {"min_keep": 2},
        {"dynatemp_range": 0.5},
        {"dry_multiplier": 0.8},
        {"top_n_sigma": 1.0},
        {"typical_p": 0.9},
        {"xtc_probability": 0.5},
        {"tfs_z": 0.9},
        {"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.5},
        {"samplers": ["infill", "top_k"]},
        {"samplers": []},
        {"top_k": 0},
        {"top_k": DEVICE.n_vocab + 1},
        {"samplers": ["top_p", "top_k"]},
        {"samplers": ["penalties", "temperature", "top_k"], "temperature": 0, "repeat_penalty": 2},
        {"temperature": 0.001},
        {"min_p": 1.0},
        {"presence_penalty": 50},
        {"repeat_penalty": 0.01},
    ],
    ids=str,
)
def test_a_chain_that_would_choose_otherwise_or_abort_stays(fields: dict[str, Any]) -> None:
    assert not fits(params_of(**fields), DEVICE)


@pytest.mark.parametrize(
    "biases", [((3, 1.0), (3, 2.0)), ((SUPPRESSED, 1.0),), ((3, 1e30),)], ids=str
)
def test_biases_that_add_up_or_drown_the_rest_stay(biases: Any) -> None:
    assert not fits(params_of(), DEVICE, biases)


def test_penalties_stay_where_drafts_have_several_tokens_chosen_at_once() -> None:
    drafting = Device(n_vocab=100, drafts=True)
    assert fits(params_of(), drafting)
    assert not fits(params_of(repeat_penalty=1.2), drafting)


class Library:
    """Stands for llama.cpp: aborts as it would, by an assertion."""

    def __init__(self, *, is_able: bool = True) -> None:
        self.is_able = is_able
        self.calls: list[tuple[int, int | None]] = []
        self.attached: dict[int, int] = {}
        self._ever: set[int] = set()
        self.board = DeviceSampling(self._attach, DEVICE)

    def _attach(self, seq: int, chain: Any) -> bool:
        self.calls.append((seq, chain))
        if chain is None:
            del self.attached[seq]
            return True
        assert chain not in self._ever, "attached twice"
        if self.is_able:
            self._ever.add(chain)
            self.attached[seq] = chain
        return self.is_able

    def chain(self, number: int) -> Chain:
        """Make a chain that may not be freed while it is attached."""
        chain = Chain.__new__(Chain)
        chain.handle, chain.before_free = number, None
        return chain

    def free(self, chain: Chain) -> None:
        """Do what its owner does when the task ends."""
        assert chain.before_free is not None
        chain.before_free()
        assert chain.handle not in self.attached.values(), "freed while attached"

    def offer(self, seq: int, number: int, **fields: Any) -> tuple[Chain, bool]:
        """Begin a task in a slot."""
        chain = self.chain(number)
        sampler: Any = SimpleNamespace(has_started=False, lone_chain=chain, biases=())
        return chain, self.board.offer(seq, sampler, params_of(**fields))

    def decode(self, *rows: BatchRow) -> None:
        """Compute a batch."""
        self.board.before(rows)
        self.board.after(rows)


PROMPT = BatchRow(1, 0, [1, 2, 3], wants_logits=True)
TOKEN = BatchRow(1, 3, [4], wants_logits=True)


def test_a_chain_is_attached_after_its_prompt_and_once() -> None:
    library = Library()
    chain, was_taken = library.offer(1, 77)
    assert was_taken
    library.decode(BatchRow(1, 0, [1], wants_logits=False))
    library.decode(PROMPT)
    assert library.calls == []
    for _ in range(3):
        library.decode(TOKEN, BatchRow(2, 0, [1], wants_logits=True))
    assert library.calls == [(1, 77)] and library.attached == {1: 77}
    library.free(chain)
    assert library.calls == [(1, 77), (1, None)] and not library.attached


def test_a_prompt_that_found_no_cells_has_not_been_read() -> None:
    library = Library()
    library.offer(1, 77)
    library.board.before([PROMPT])
    library.decode(PROMPT)
    assert library.calls == []


def test_a_task_that_ends_with_its_first_token_changes_nothing() -> None:
    library = Library()
    chain, _ = library.offer(1, 77)
    library.decode(PROMPT)
    library.free(chain)
    library.decode(TOKEN)
    assert library.calls == []


def test_a_slot_takes_one_chain_after_the_other() -> None:
    library = Library()
    for number in (77, 78, 79):
        chain, _ = library.offer(1, number)
        library.decode(PROMPT)
        library.decode(TOKEN)
        library.free(chain)
    assert library.calls == [(1, 77), (1, None), (1, 78), (1, None), (1, 79), (1, None)]


def test_who_ends_late_does_not_detach_a_successor() -> None:
    library = Library()
    first, _ = library.offer(1, 77)
    library.decode(PROMPT)
    library.decode(TOKEN)
    library.offer(1, 78)
    assert library.attached == {}
    library.decode(PROMPT)
    library.decode(TOKEN)
    library.free(first)
    assert library.attached == {1: 78}


def test_nothing_is_attached_when_the_context_goes_and_tasks_may_end_after() -> None:
    library = Library()
    chain, _ = library.offer(1, 77)
    library.decode(PROMPT)
    library.decode(TOKEN)
    library.board.close()
    assert library.attached == {}
    n_calls = len(library.calls)
    library.free(chain)
    assert len(library.calls) == n_calls


def test_a_device_that_refuses_is_asked_once() -> None:
    library = Library(is_able=False)
    library.offer(1, 77)
    for row in (PROMPT, TOKEN, TOKEN):
        library.decode(row)
    assert library.calls == [(1, 77)] and not library.attached


def test_only_who_asks_goes_on_board() -> None:
    library = Library()
    assert not library.offer(1, 77, backend_sampling=False)[1]
    no_chain: Any = SimpleNamespace(has_started=False, lone_chain=None, biases=())
    assert not library.board.offer(1, no_chain, params_of())


def test_tensor_parallel_models_sample_on_the_host_and_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vocabulary: Any = SimpleNamespace(n_tokens=100, suppressed=list)
    config = WorkerConfig(split_mode="tensor", sampling=params_of())
    board = open_device_sampling(None, vocabulary, config)
    assert "-sm tensor" in caplog.text
    sampler: Any = SimpleNamespace(has_started=False, lone_chain=object(), biases=())
    assert not board.offer(1, sampler, params_of())


@pytest.mark.parametrize("grammar", ["", "root ::= [a-z]+"])
def test_the_engine_tells_what_is_in_force(grammar: str) -> None:
    rig = Rig(n_slots=3)
    task_id = rig.submit("abc", slot=2, backend_sampling=True, grammar=grammar)
    rig.turn()
    slot = rig.engine.slots[2]
    sampler = slot.active.sampler
    assert isinstance(sampler, FakeSampler) and sampler.seq == 2
    told = [slot.report().params]
    rig.finish()
    told.append(slot.report().params)
    in_force = [params.backend_sampling for params in told if params is not None]
    assert [*in_force, rig.done(task_id).backend_sampling] == [not grammar] * 3
