"""Self-extend: positions are shared by groups, and everything else goes on as it was."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from tests.worker.engines import Rig
from worker.engine.backend import Regroup
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.fake.backend import FakeBackend
from worker.engine.slot import Slot
from worker.engine_settings import self_extend


def seed_positions(n: int, n_tokens: int, ga_n: int, ga_w: int) -> list[int]:
    """Move positions one by one, as the server of 2024 let llama.cpp move its cells."""
    positions: list[int] = []
    n_past_se = ga_i = 0
    for _ in range(0, n_tokens, n):
        while n_past_se >= ga_i + ga_w:
            ib = ga_n * ga_i // ga_w
            bd = ga_w // ga_n * (ga_n - 1)
            dd = ga_w // ga_n - ib * bd - ga_w
            positions = [p + ib * bd if ga_i <= p < n_past_se else p for p in positions]
            low = ga_i + ib * bd
            positions = [p // ga_n if low <= p < low + ga_w else p for p in positions]
            positions = [p + dd if low + ga_w <= p < n_past_se + ib * bd else p for p in positions]
            n_past_se -= bd
            ga_i += ga_w // ga_n
        positions += range(n_past_se, n_past_se + n)
        n_past_se += n
    return positions


@given(
    ga_n=st.sampled_from([2, 4]),
    width=st.sampled_from([16, 64]),
    n=st.integers(1, 16),
    n_tokens=st.integers(0, 400),
)
def test_positions_are_those_of_the_seeds(ga_n: int, width: int, n: int, n_tokens: int) -> None:
    rules, slot = SelfExtend(ga_n, width), Slot(0, 4096)
    positions: list[int] = []
    for _ in range(0, n_tokens, n):
        for move in rules.regroup(slot):
            low = move.start + move.up
            positions = [p + move.up if move.start <= p < move.end else p for p in positions]
            behind = low + move.width
            positions = [p // move.n if low <= p < behind else p for p in positions]
            end = move.end + move.up
            positions = [p + move.down if behind <= p < end else p for p in positions]
        positions += range(slot.n_pos, slot.n_pos + n)
        slot.tokens += [1] * n
    assert positions == seed_positions(n, n_tokens, ga_n, width)
    assert not positions or max(positions) == slot.n_pos - 1


def test_a_text_runs_through_many_groups() -> None:
    rig = Rig(n_ctx=256, self_extend=SelfExtend(2, 16))
    first = rig.submit("x" * 100, n_predict=100)
    second = rig.submit("hello", n_predict=30)
    rig.finish()
    plain = Rig(n_ctx=256)
    plain.submit("x" * 100, n_predict=100)
    plain.finish()
    assert rig.text(first) == plain.text(1)
    assert rig.done(second).n_predicted == 30
    assert all(slot.n_pos <= len(slot.tokens) for slot in rig.engine.slots)


def test_positions_do_not_depend_on_the_speed_of_reading() -> None:
    moves = []
    for n_batch in (32, 64):
        rig = Rig(n_ctx=512, n_batch=n_batch, self_extend=SelfExtend(2, 16))
        seen: list[tuple[int, Regroup]] = []
        regroup = rig.backend.regroup

        def noted(
            seq: int, move: Regroup, rig: Rig = rig, seen: list[Any] = seen, do: Any = regroup
        ) -> None:
            seen.append((len(rig.engine.slots[seq].tokens), move))
            do(seq, move)

        rig.backend.regroup = noted  # type: ignore[method-assign]
        rig.submit("x" * 300)
        rig.finish()
        moves.append(seen)
    assert moves[0] == moves[1] != []


def test_no_prompt_is_reused_and_none_is_shifted() -> None:
    rig = Rig(n_slots=2, n_ctx=128, context_shift=True, self_extend=SelfExtend(2, 16))
    rig.submit("x" * 60)
    rig.finish()
    again = [rig.submit("x" * 60), rig.submit("x" * 60, n_predict=-1)]
    rig.finish()
    assert [rig.done(task).n_cached for task in again] == [0, 0]
    assert rig.done(again[1]).truncated


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"grp_attn_n": 3, "grp_attn_w": 512}, "multiple"),
        ({"grp_attn_n": 2, "spec_type": ("ngram-simple",)}, "speculative decoding"),
        ({"grp_attn_n": 2, "mmproj": "p.gguf"}, "mmproj"),
    ],
)
def test_what_cannot_be_grouped_is_refused_at_the_start(
    settings: dict[str, Any], reason: str
) -> None:
    config = WorkerConfig(backend="fake", **settings)
    with pytest.raises(ConfigError, match=reason):
        self_extend(config, FakeBackend(config))


def test_a_model_whose_positions_cannot_be_shared_is_refused() -> None:
    class Windowed(FakeBackend):
        can_group = False

    config = WorkerConfig(backend="fake", grp_attn_n=2)
    with pytest.raises(ConfigError, match="yarn"):
        self_extend(config, Windowed(config))
