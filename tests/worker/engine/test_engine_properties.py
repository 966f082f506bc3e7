"""Whatever is submitted and cancelled in whatever order: one end each, and nothing left behind."""

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.wire.messages import Delta, Started, Terminal
from tests.examples import examples
from tests.worker.engines import Rig
from worker.engine.fake.sampler import FakeSampler
from worker.engine.scheduling.budget import StepBudget
from worker.engine.slot import SlotState
from worker.engine.speculation.lookup import PromptLookup


class AnySpeed(StepBudget):
    """Budgets of a machine whose speed changes all the time, but not from run to run."""

    __slots__ = ("_random",)

    def __init__(self, n_batch: int) -> None:
        super().__init__(0.1, n_batch)
        self._random = random.Random(n_batch)

    def tokens(self, n_decoding: int, *, is_short: bool = True) -> int:
        """Return anything that is possible."""
        room = self.n_batch - n_decoding
        return min(room, self._random.choice([1, 2, 15, 16, 17, 63, 64, 65, room, room]))


class EngineMachine(RuleBasedStateMachine):
    """Drives one engine over the fake backend, whose asserts are part of the test."""

    scale = 1
    """By which prompts, contexts and batches are longer."""

    def __init__(self) -> None:
        super().__init__()
        self.n_open = FakeSampler.open_count
        n_ctx, n_batch = 64 * self.scale, 32 * self.scale
        self.rig = Rig(n_slots=3, n_ctx=n_ctx, n_batch=n_batch, drafter=PromptLookup(1, 4))
        self.rig.engine._step._budget = AnySpeed(n_batch)
        self.ids: list[int] = []

    @rule(
        n=st.integers(0, 60),
        letter=st.sampled_from("ab"),
        n_predict=st.sampled_from([-1, 0, 1, 5]),
        slot=st.sampled_from([-1, -1, 0, 2]),
        cached=st.booleans(),
    )
    def submit(self, n: int, letter: str, n_predict: int, slot: int, cached: bool) -> None:
        """Add a task."""
        self.ids.append(
            self.rig.submit(
                letter * n * self.scale, slot=slot, n_predict=n_predict, cache_prompt=cached
            )
        )

    @rule(n=st.integers(0, 30), letter=st.sampled_from("ab"), cached=st.booleans())
    def submit_broken(self, n: int, letter: str, cached: bool) -> None:
        """Add a task with which all logits are NaN."""
        prompt = "[[nan]]" + letter * n * self.scale
        self.ids.append(self.rig.submit(prompt, cache_prompt=cached))

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel any task, ended or not."""
        self.rig.cancel(data.draw(st.sampled_from(self.ids)))

    @precondition(lambda self: self.rig.engine._has_work() or self.has_commands())
    @rule()
    def turn(self) -> None:
        """Let the engine work."""
        self.rig.turn()

    def has_commands(self) -> bool:
        """Return whether the engine has not heard of something yet."""
        return not self.rig.engine._commands.empty()

    @invariant()
    def slots_hold_what_the_backend_holds(self) -> None:
        """The books of engine and backend agree."""
        for slot in self.rig.engine.slots:
            assert slot.tokens == self.rig.backend._cells.get(slot.id, [])
            assert len(slot.tokens) <= slot.n_ctx
            assert (slot.run is None) == (slot.state is SlotState.IDLE)

    @invariant()
    def messages_keep_their_order(self) -> None:
        """Started first, at most one terminal, nothing after it."""
        ended: set[int] = set()
        started: set[int] = set()
        for (task_id, *_), message, _ in self.rig.envelopes:
            assert task_id not in ended
            if isinstance(message, Started):
                started.add(task_id)
            if isinstance(message, Delta):
                assert task_id in started
            if isinstance(message, Terminal):
                ended.add(task_id)

    def teardown(self) -> None:
        """Everything ends, once."""
        engine = self.rig.engine
        if engine.n_busy or engine.n_waiting or not engine._commands.empty():
            self.rig.finish()
        assert all(self.rig.terminals(task_id) == 1 for task_id in self.ids)
        assert FakeSampler.open_count == self.n_open


class LargeMachine(EngineMachine):
    """Longer prompts, contexts and batches."""

    scale = 6


for machine in (EngineMachine, LargeMachine):
    machine.TestCase.settings = examples(60 // (1 + (machine.scale > 1)), stateful_step_count=40)
TestEngine = EngineMachine.TestCase
TestLargeBatches = pytest.mark.slow(LargeMachine.TestCase)
