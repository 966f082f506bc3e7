"""The choice of a worker: minutes of traffic on a simulated clock."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.pool.routing import policy
from gateway.pool.tasks.spec import TaskSpec
from tests.gateway.simulation import Conversation, Simulation, Speed, Turn, words


def talk(simulation: Simulation, n: int, *, n_turns: int = 6, over_s: float = 10.0) -> list[Turn]:
    """Let conversations under one system prompt run to their end; return their turns."""
    system = words("system", 600)
    talks = [
        Conversation(simulation, f"c{i}", system=system, n_turns=n_turns, stays=i) for i in range(n)
    ]
    for i, one in enumerate(talks):
        simulation.at(over_s * i / n, one.ask)
    simulation.run()
    turns = [turn for one in talks for turn in one.turns]
    assert len(turns) == n * n_turns
    assert not any(turn.failed for turn in turns)
    return turns


def reused(turns: Sequence[Turn]) -> float:
    """Return tokens found in caches over those that one unbounded cache would have held."""
    ideal = sum(turn.n_prompt - 120 for turn in turns)
    return sum(turn.n_cached for turn in turns) / ideal


def moved(turns: Sequence[Turn]) -> float:
    """Return the share of turns that went to another worker than the turn before."""
    pairs = [(a, b) for a, b in itertools.pairwise(turns) if a.stays == b.stays]
    return sum(a.worker != b.worker for a, b in pairs) / len(pairs)


FAST = Speed(read_per_s=5000, write_per_s=100)


def test_turns_land_where_their_history_is() -> None:
    turns = talk(Simulation(*[FAST] * 4), 40)
    assert moved(turns) < 0.1
    assert reused(turns) > 0.95
    control = talk(Simulation(*[FAST] * 4, blind=True), 40)
    assert moved(control) > 0.6
    assert reused(control) < 0.8


@pytest.mark.parametrize("speed", [Speed(), Speed(read_per_s=300, write_per_s=40, crowding=0.15)])
@pytest.mark.slow
def test_a_pool_in_demand_serves_faster_by_knowing_its_caches(speed: Speed) -> None:
    runs = [Simulation(*[speed] * 4, queue_timeout_s=600, blind=blind) for blind in (False, True)]
    turns, control = (talk(one, 100, n_turns=4) for one in runs)
    assert moved(turns) < 0.35
    assert moved(control) > 0.6
    assert reused(turns) > 0.9
    assert reused(control) < 0.8
    assert runs[0].now < runs[1].now
    waits, control_waits = (
        sorted(turn.first_at - turn.asked_at for turn in one) for one in (turns, control)
    )
    for share in (0.5, 0.99):
        assert waits[int(share * len(waits))] < control_waits[int(share * len(waits))]


def test_conversations_beyond_the_slots_are_not_read_again_and_again() -> None:
    """Who reads another's prompt anew makes all wait, so that more of them go elsewhere."""
    simulation = Simulation(*[Speed(n_slots=4)] * 4)
    talks = [
        Conversation(simulation, f"c{i}", system=words(f"own{i}", 1500), n_turns=6)
        for i in range(32)
    ]
    for i, one in enumerate(talks):
        simulation.at(i / 8, one.ask)
    simulation.run()
    turns = [turn for one in talks for turn in one.turns]
    assert sum(turn.n_cached for turn in turns) > 0.8 * sum(turn.n_prompt - 120 for turn in turns)
    assert first_token_s(turns, 0.5) < 0.5


def test_one_hot_prefix_spreads_over_the_pool() -> None:
    simulation = Simulation(*[FAST] * 4)
    turns = talk(simulation, 64, n_turns=1, over_s=2.0)
    assert max(simulation.loads.values()) <= 1.5 * min(simulation.loads.values())
    assert sum(turn.n_cached < 500 for turn in turns) <= 8


def test_with_caches_that_are_too_small_nothing_is_lost() -> None:
    small = Speed(read_per_s=5000, write_per_s=100, n_cells=3000)
    turns = talk(Simulation(*[small] * 4), 40)
    control = talk(Simulation(*[small] * 4, blind=True), 40)
    assert reused(turns) > reused(control) - 0.02


def test_a_slow_worker_gets_as_much_as_it_can_take() -> None:
    simulation = Simulation(FAST, Speed(read_per_s=250, write_per_s=10))
    talk(simulation, 24)
    assert simulation.loads["w0"] > 4 * simulation.loads["w1"]


@pytest.mark.slow
def test_a_choice_among_many_workers_looks_at_a_few_and_is_as_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of 32 workers are slow, and unknown at first."""
    looked: list[int] = []
    offers = policy.RoutingPolicy._offers

    def counted(
        self: policy.RoutingPolicy, spec: TaskSpec, keys: Sequence[str], *rest: Any
    ) -> list[Any]:
        looked.append(len(keys))
        return offers(self, spec, keys, *rest)

    monkeypatch.setattr(policy.RoutingPolicy, "_offers", counted)
    speeds = [FAST, Speed(read_per_s=1500, write_per_s=40)] * 16
    few = talk(Simulation(*speeds, queue_size=2000), 160, n_turns=4)
    assert max(looked) <= 25
    monkeypatch.setattr(policy, "_SMALL_POOL", 1000)
    everyone = talk(Simulation(*speeds, queue_size=2000), 160, n_turns=4)
    assert max(looked) == 32
    assert reused(few) > reused(everyone) - 0.02
    assert first_token_s(few, 0.5) <= 1.1 * first_token_s(everyone, 0.5)
    assert first_token_s(few, 0.99) <= 1.1 * first_token_s(everyone, 0.99)


def first_token_s(turns: Sequence[Turn], share: float) -> float:
    waits = sorted(turn.first_at - turn.asked_at for turn in turns)
    return waits[int(share * len(waits))]
