"""Nothing that a client sends ends a process, leaks, is answered with 500, or breaks a stream."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.hostile.attack import attack
from tests.hostile.case import Target
from tests.hostile.corpus import GROUPS
from tests.hostile.health import Footprint, harm_in_log, leaks, loop_lag
from tests.hostile.neighbours import Neighbours
from tests.hostile.pool import TargetPool, start_pool, target_of
from tests.hostile.wire_frames import attack_wire
from tests.models.shallow import N_ALL_TOKENS, shallow_path

pytestmark = [pytest.mark.model, pytest.mark.alone, pytest.mark.timeout(300)]

SHARE = {"numbers": 10, "encodings": 6, "tokens": 4}
"""Of these groups every n-th case is sent; `python -m tests.hostile` sends them all."""
AT_ONCE = {"raw_http": 16}
"""Of these groups so many cases are sent at once, not two: they wait for no answer to come."""
LONGEST_GAP_S = 1.0
WORST_LAG_S = 0.25
LOOPS = {"llamapool_gateway_loop_lag_seconds", "llamapool_link_loop_lag_seconds"}


@dataclass
class Attacked:
    """A pool under attack, and the streams that run on it meanwhile."""

    pool: TargetPool
    target: Target
    neighbours: Neighbours


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Two workers of llama.cpp; what must hold after all attacks is looked at in the end.

    Of one thread each: those of a model wait for one another awake, on cores that others need.
    """
    extra = f'model = "{shallow_path(N_ALL_TOKENS)}"\nn_threads = 1\n'
    pool = start_pool(tmp_path_factory.mktemp("attacked"), extra)
    try:
        before = Footprint.of(pool)
        with Neighbours(pool.url, n_streams=1) as neighbours:
            yield Attacked(pool, target_of(pool), neighbours)
        assert leaks(pool, before) == []
        assert {name.split()[0] for name in loop_lag(pool)} == LOOPS
        pool.signal(signal.SIGTERM)
        assert pool.wait(30) == 0
        assert harm_in_log(pool) == []
    finally:
        pool.close()


def check_neighbours(attacked: Attacked) -> None:
    assert attacked.neighbours.faults == []
    stall_s = attacked.neighbours.longest_stall_s
    assert attacked.neighbours.longest_gap_s - stall_s < LONGEST_GAP_S
    lags = loop_lag(attacked.pool)
    assert [name for name, lag in lags.items() if lag.worst_s - stall_s > WORST_LAG_S] == [], lags


@pytest.mark.parametrize("group", GROUPS)
def test_group_does_no_harm(attacked: Attacked, group: str) -> None:
    cases = GROUPS[group](attacked.target)[:: SHARE.get(group, 1)]
    outcomes = attack(attacked.pool.url, cases, at_once=AT_ONCE.get(group, 2))
    assert [str(one) for one in outcomes if not one.is_good] == []
    assert harm_in_log(attacked.pool) == []
    check_neighbours(attacked)


def test_frames_of_strangers_do_no_harm(attacked: Attacked) -> None:
    assert attack_wire(f"ipc://{attacked.pool.socket}", "w-1") > 50
    assert harm_in_log(attacked.pool) == []
    check_neighbours(attacked)


def test_corpus_is_large_enough(attacked: Attacked) -> None:
    assert sum(len(cases(attacked.target)) for cases in GROUPS.values()) >= 300
