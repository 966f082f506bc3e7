"""Prompts that share beginnings, in too small a cache: every text is what it would be alone."""

import itertools
import struct
from functools import cache

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from protocol.wire.messages import Done
from tests.examples import examples
from tests.worker.engines import Rig, chain_of, said
from worker.engine.fake.sampler import FakeSampler

FOX = "The quick brown fox jumps over the lazy dog. "
BEGINNINGS = ("", FOX, FOX * 2, "Other: " + FOX)


@cache
def alone(prompt: str, n_predict: int) -> str:
    """The text that nobody else had any part in."""
    rig = Rig(n_slots=1, n_cells=512, n_branches=0)
    task = rig.submit(prompt, n_predict=n_predict, cache_prompt=False)
    rig.finish()
    return rig.text(task)


class CacheMachine(RuleBasedStateMachine):
    """One engine whose slots share 320 cells, branches and a host's cache beside them."""

    needs_checkpoints = False
    window = 0
    is_unified = True
    n_cells = 320

    def __init__(self) -> None:
        super().__init__()
        self.n_open = FakeSampler.open_count
        self.rig = Rig(
            n_slots=3,
            n_ctx=320,
            n_cells=320 if self.is_unified else 0,
            n_batch=24,
            n_branches=2,
            is_unified=self.is_unified,
            needs_checkpoints=self.needs_checkpoints,
            window=self.window,
            n_checkpoints=4,
            host_bytes=2000,
        )
        host = self.rig.engine.cache._host
        host.n_piece = host.n_piece if host.is_whole else 16
        self.asked: dict[int, tuple[str, int]] = {}

    @initialize(copy_s=st.sampled_from([0.0, 0.1, 1.0]))
    def take_time(self, copy_s: float) -> None:
        """Let each piece of a copy take so long: a step copies them all, a few, or one."""
        ticks = itertools.count()
        self.rig.engine.cache.copies.clock = lambda: next(ticks) * copy_s

    @rule(
        beginning=st.sampled_from(BEGINNINGS),
        end=st.text("ab", max_size=60),
        n_predict=st.integers(0, 80),
        salt=st.sampled_from(["", "", "x"]),
        slot=st.sampled_from([-1, -1, -1, 1]),
    )
    def submit(self, beginning: str, end: str, n_predict: int, salt: str, slot: int) -> None:
        """Add a task."""
        prompt = beginning + end
        task = self.rig.submit(prompt, n_predict=n_predict, salt=salt, slot=slot)
        self.asked[task] = prompt, n_predict

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel any task."""
        self.rig.cancel(data.draw(st.sampled_from(sorted(self.asked))))

    @precondition(lambda self: self.rig.engine.n_busy)
    @rule(n=st.integers(1, 20))
    def turn(self, n: int) -> None:
        """Let the engine work."""
        for _ in range(n):
            if self.rig.engine.n_busy:
                self.rig.turn()

    @precondition(lambda self: not self.rig.engine.n_busy)
    @rule()
    def forget(self) -> None:
        """Empty a slot, as a client may."""
        self.rig.engine.cache.empty(self.rig.engine.slots[0])

    @invariant()
    def the_index_names_only_what_is_there(self) -> None:
        """What the index says of a sequence is what the backend holds of it."""
        cache, cells = self.rig.engine.cache, self.rig.backend._cells
        held = {slot.id: slot.tokens for slot in cache.slots}
        held |= {branch.id: branch.tokens for branch in cache.branches.held.values()}
        for seq, tokens in held.items():
            assert cells.get(seq, []) == tokens
        assert all(seq in held for seq, content in cells.items() if content)
        namespaces = {slot.id: slot.namespace for slot in cache.slots}
        namespaces |= {branch.id: branch.namespace for branch in cache.branches.held.values()}
        for seq, namespace in cache.index._namespaces.items():
            assert namespace == namespaces[seq], "a tenant could take what is another's"
            n = cache.index.length(seq)
            assert 0 < n <= len(held[seq])
            if not self.needs_checkpoints:
                assert cache.index.tokens_of(seq) == held[seq][:n]
                assert cache.index.longest(namespace, held[seq][:n]).n == n
        branches = range(3, self.rig.backend.n_seq)
        assert sorted(cache.branches.free) == [i for i in branches if i not in cache.branches.held]

    @invariant()
    def checkpoints_are_of_what_is_there(self) -> None:
        """They lie in their order within the tokens, and neither they nor their bytes are many."""
        cache = self.rig.engine.cache
        for slot in cache.slots:
            places = [each.n for each in slot.checkpoints]
            assert places == sorted(set(places)) and len(places) <= 4
            for n, n_pos, state in slot.checkpoints:
                assert n == n_pos <= len(slot.tokens)
                assert bytes(state[4:]) == struct.pack(f"<{n}i", *slot.tokens[:n])
        assert cache.checkpoints.n_bytes <= 2000

    @invariant()
    def gateways_are_told_what_is_there(self) -> None:
        """The blocks that were said are those of the sequences, and no sequence claims too much."""
        held, told = self.rig.engine.cache.blocks, said(self.rig)
        assert (told - held._removed.keys()) | held._added.keys() == held._counts.keys()
        cache = self.rig.engine.cache
        for one in cache.idle():
            n = len(one.chain.blocks)
            text = bytes(one.tokens[1:]).decode()
            assert one.chain.blocks == chain_of(text)[:n]
        for slot in cache.slots:
            if slot.run is not None and not slot.run.is_preempted:
                assert slot.chain.blocks == slot.active.task.chain
            elif not slot.tokens:
                assert not slot.chain.blocks

    @invariant()
    def a_new_gateway_is_told_of_all(self) -> None:
        """Everything is said in messages that are not too long."""
        held = self.rig.engine.cache.blocks
        everything = [run for message in held.everything() for run in message.added]
        assert {run[i : i + 8] for run in everything for i in range(8, len(run), 8)} == (
            held._counts.keys()
        )

    @invariant()
    def the_books_do_not_count_too_much(self) -> None:
        """Cells that the cache says are in use are; memory is bounded."""
        cache = self.rig.engine.cache
        assert cache.n_cells <= self.rig.backend.n_used <= self.n_cells
        if self.needs_checkpoints or not self.is_unified:
            assert cache.n_cells == self.rig.backend.n_used
        assert 0 <= cache.n_evictable <= cache.n_cells
        assert cache.n_host_bytes <= 2000

    def teardown(self) -> None:
        """Everything ends once; whoever was not cancelled has the text that it would have alone."""
        if self.rig.engine.n_busy or not self.rig.engine._commands.empty():
            self.rig.finish()
        assert FakeSampler.open_count == self.n_open
        for task, (prompt, n_predict) in self.asked.items():
            assert self.rig.terminals(task) == 1
            end = self.rig.of(task)[-1]
            if isinstance(end, Done):
                text = alone(prompt, n_predict)
                whole = end.n_predicted == n_predict
                assert (
                    self.rig.text(task) == text if whole else text.startswith(self.rig.text(task))
                )


CacheMachine.TestCase.settings = examples(80, stateful_step_count=40)
TestCache = CacheMachine.TestCase


class CheckpointMachine(CacheMachine):
    """The same where sequences can be cut only at their ends and at checkpoints."""

    needs_checkpoints = True


CheckpointMachine.TestCase.settings = examples(80, stateful_step_count=40)
TestCheckpoints = pytest.mark.slow(CheckpointMachine.TestCase)


class SlidingMachine(CheckpointMachine):
    """The same with sliding windows: sequences can be cut near their ends, too."""

    window = 40


SlidingMachine.TestCase.settings = examples(80, stateful_step_count=40)
TestSliding = pytest.mark.slow(SlidingMachine.TestCase)


class StreamMachine(CacheMachine):
    """The same where each slot has a cache of its own."""

    is_unified = False
    n_cells = 960


StreamMachine.TestCase.settings = examples(80, stateful_step_count=40)
TestStreams = pytest.mark.slow(StreamMachine.TestCase)


class WindowMachine(StreamMachine):
    """Caches of their own with sliding windows: both at once."""

    needs_checkpoints = True
    window = 40


WindowMachine.TestCase.settings = examples(80, stateful_step_count=40)
TestWindows = WindowMachine.TestCase
