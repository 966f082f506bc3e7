"""A model with two caches: that of its attention and that of the indexer which serves it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.wire.side_tasks import SlotAction
from tests.models.memories import write_minimax_m3
from tests.worker.conftest import serving
from tests.worker.served import Served

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.cpu]

STORY = "Once upon a time there was a very old house at the end of the street, and in it lived" * 2
SAMPLED = {"temperature": 1.0, "seed": 7}


@pytest.fixture(scope="module", params=[True, False], ids=["unified", "apart"])
def two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("indexer")
    model = str(write_minimax_m3(folder / "minimax-m3.gguf"))
    is_unified = bool(request.param)
    with serving(
        2, model=model, n_ctx=2048, kv_unified=is_unified, slot_save_path=str(folder)
    ) as served:
        served.engine.cache._host._n_bytes_max = -1
        assert served.backend.is_unified == is_unified
        assert not served.backend.states.needs_checkpoints
        yield served


@pytest.mark.parametrize("slot", [0, 1])
def test_a_saved_slot_goes_on_as_before(two: Served, tmp_path: Path, slot: int) -> None:
    following = STORY + " a witch who"
    expected = two.ask(following, cache_prompt=False, **SAMPLED).text
    two.engine.cache.clear()
    n_tokens = two.ask(STORY, n_predict=0, id_slot=slot).done.n_prompt
    two.do(SlotAction(action="save", filename="story"), tmp_path, slot)
    two.engine.cache.clear()
    two.do(SlotAction(action="restore", filename="story"), tmp_path, 1 - slot)
    answer = two.ask(following, id_slot=1 - slot, **SAMPLED)
    assert (answer.done.n_cached, answer.text) == (n_tokens, expected)


def test_a_prompt_comes_back_from_ram(two: Served) -> None:
    following = STORY + " a witch who"
    expected = two.ask(following, cache_prompt=False, **SAMPLED).text
    two.engine.cache.clear()
    n_tokens = two.ask(STORY, id_slot=1, n_predict=8).done.n_prompt
    while two.engine.cache.evict():
        pass
    answer = two.ask(following, id_slot=0, **SAMPLED)
    assert answer.done.n_cached >= n_tokens - 1
    assert answer.text == expected
