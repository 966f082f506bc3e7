"""Branches: prompts that stay in the context, in sequences that no slot has."""

from worker.engine.backend import Backend
from worker.engine.cache.cached_blocks import CachedBlocks
from worker.engine.cache.index import SequenceIndex
from worker.engine.cache.sequences import CachedBranch
from worker.engine.slot import BlockChain, Slot


class Branches:
    """Owns these sequences; used by the engine's thread only."""

    def __init__(
        self, backend: Backend, index: SequenceIndex, blocks: CachedBlocks, numbers: range
    ) -> None:
        """`numbers` are those of the sequences; the lowest is used first."""
        self._backend = backend
        self._index = index
        self._blocks = blocks
        self.free = list(reversed(numbers))
        """Numbers of sequences that hold nothing."""
        self.held: dict[int, CachedBranch] = {}
        """By the number of the sequence."""

    def add(self, slot: Slot) -> None:
        """Let a free sequence share all cells of a slot."""
        seq, tokens = self.free.pop(), list(slot.tokens)
        self._backend.copy(slot.id, seq, 0, slot.n_pos)
        branch = CachedBranch(seq, tokens, slot.namespace, slot.chain, slot.last_used)
        self.held[seq] = branch
        self._blocks.put(seq, branch.chain)
        self._index.extend(seq, slot.namespace, tokens)
        slot.n_shared = len(tokens)

    def drop(self, branch: CachedBranch) -> None:
        """Empty a branch; its number is free again."""
        self._backend.remove(branch.id, 0)
        self._index.cut(branch.id, 0)
        del self.held[branch.id]
        self._blocks.put(branch.id, BlockChain())
        self.free.append(branch.id)

    def absorb(self, slot: Slot) -> bool:
        """Drop branches that are prefixes of a slot's tokens: earlier turns of a conversation."""
        covered = [one for one in self.held.values() if self._index.is_covered(one.id, slot.id)]
        for branch in covered:
            self.drop(branch)
        return bool(covered)
