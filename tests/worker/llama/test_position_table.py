"""A model whose positions are a table: llama.cpp aborts at a position beyond its end."""

from pathlib import Path
from typing import Any

import pytest

from protocol.wire.messages import Finish
from tests.models.gpt2 import N_POSITIONS, write_gpt2
from tests.worker.conftest import serving

pytestmark = [pytest.mark.model, pytest.mark.cpu]

YARN: dict[str, Any] = {"rope_scaling": "yarn", "rope_freq_scale": 0.25}


@pytest.mark.parametrize("options", [{}, YARN, {"n_ctx": 0} | YARN, {"kv_unified": True}])
def test_no_slot_is_longer_than_the_table(tmp_path: Path, options: dict[str, Any]) -> None:
    path = str(write_gpt2(tmp_path / "gpt2.gguf"))
    with serving(2, model=path, **({"n_ctx": 1024} | options)) as two:
        assert two.backend.card.n_ctx == N_POSITIONS
        answer = two.ask([5] * (N_POSITIONS - 20), n_predict=60, ignore_eos=True)
        assert answer.done.finish is Finish.LIMIT
        assert answer.done.n_predicted <= 21


def test_positions_of_a_table_cannot_be_shared(tmp_path: Path) -> None:
    path = str(write_gpt2(tmp_path / "gpt2.gguf"))
    with serving(1, model=path) as one:
        assert not one.backend.can_group
