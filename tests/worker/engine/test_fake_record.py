"""What a fake engine has computed, counted apart from the engine's own counters."""

from collections.abc import Callable
from pathlib import Path

import pytest

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
