"""The same prompt once more, alone: its answer takes the cells of the one before (fault T7)."""

from tests.worker.engines import Rig


def test_a_repeated_prompt_leaves_nothing_behind_its_answers() -> None:
    """Idle answers would push the next one to other cells, and a CPU's kernels round by these."""
    rig = Rig(n_slots=1, n_ctx=2048, n_batch=512)
    seen = []
    for i in range(6):
        # Of another seed, so that the answers differ from each other.
        task_id = rig.submit("x" * 700, n_predict=60, temperature=1.0, seed=i)
        rig.finish()
        seen.append((rig.started(task_id).n_cached, rig.engine.cache.n_cells))
    assert len(rig.engine.cache.branches.held) == 0
    assert seen == [(0, 760)] + [(700, 760)] * 5


def test_another_prompt_still_leaves_the_text_before_it() -> None:
    rig = Rig(n_slots=1, n_ctx=2048, n_batch=512)
    rig.submit("x" * 700 + "one", n_predict=60)
    rig.finish()
    rig.submit("x" * 700 + "two", n_predict=60)
    rig.finish()
    assert len(rig.engine.cache.branches.held) == 1
