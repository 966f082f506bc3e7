"""What a fake engine has computed, counted apart from the engine's own counters."""

from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.wire.accounts import N_BYTES, AccountReader, AccountTable
from tests.worker.engines import Rig
from worker.engine.fake.record import RECORD_VARIABLE, read_records


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, int]]:
    monkeypatch.setenv(RECORD_VARIABLE, str(tmp_path / "record"))

    def read() -> tuple[int, int]:
        (found,) = read_records(tmp_path / "record").values()
        return found.n_read, found.n_sampled

    return read


def test_the_counters_are_what_was_computed(recorded: Callable[[], tuple[int, int]]) -> None:
    rig = Rig(n_slots=3)
    for prompt in ("one prompt", "one prompt", "one prompt and more", "x"):
        rig.submit(prompt, n_predict=7)
    rig.finish()
    counters = rig.engine.counters
    assert recorded() == (counters.n_prompt, counters.n_predicted)
    assert counters.n_predicted == 28


def test_a_task_that_is_cancelled_counts_what_it_has_cost(
    recorded: Callable[[], tuple[int, int]],
) -> None:
    rig = Rig(n_slots=1, n_batch=16)
    prompt = "a prompt that takes several steps to be read"
    task = rig.submit(prompt, n_predict=50)
    rig.turn()
    rig.cancel(task)
    rig.finish()
    usage = rig.done(task).usage
    assert recorded() == (usage.n_read, usage.n_predicted)
    assert 0 < usage.n_read < len(prompt)
    counters = rig.engine.counters
    assert (usage.n_read, usage.n_predicted) == (counters.n_prompt, counters.n_predicted)


def test_the_rows_of_attempts_are_what_was_computed_at_every_moment(
    recorded: Callable[[], tuple[int, int]],
) -> None:
    memory = memoryview(bytearray(N_BYTES))
    rig = Rig(n_slots=2, n_batch=16, accounts=AccountTable(memory))
    reader = AccountReader(memory)
    for prompt in ("one prompt that is read in steps", "another", "one prompt that is read here"):
        rig.submit(prompt, n_predict=5)
    n_turns = 0
    while not n_turns or rig.engine.n_busy or rig.engine.n_waiting:
        rig.turn()
        n_turns += 1
        rows, sums = [one.usage for one in reader.of(0)], reader.sums()
        assert sum(one.n_read for one in rows) == sums.n_read == recorded()[0]
        assert sum(one.n_predicted for one in rows) == sums.n_predicted == recorded()[1]
        assert sum(one.n_cached for one in rows) == sums.n_cached == rig.engine.counters.n_cached
    assert recorded()[1] == 15
    assert n_turns > 5
