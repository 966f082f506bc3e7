"""What should be cached where: the prefixes that one worker holds, and where sessions were last.

Pure bookkeeping. A prompt is known by the hashes of its blocks, each of which stands for all before
it too (`block_hashes.py`); a worker's blocks form a tree, so a block is only known with all that
lead to it. A task keeps its blocks in the index until it is forgotten: when the worker says that it
has evicted them, or as the oldest when the index has reached its bound. It is a prediction; the
worker itself counts what it reuses.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

_BLOCK_BYTES = 180
_TASK_BYTES = 220
"""Bytes of an entry with its share of the dictionaries, as the tests of this module measure it."""

_MANY = 3
"""Prompts that continue from one block: from so many on it ends a shared system prompt."""


class _Block:
    """One block, with the number of blocks that follow it and of tasks that end with it."""

    __slots__ = ("n_branches", "n_tasks", "name", "parent")

    def __init__(self, name: int, parent: "_Block | None") -> None:
        self.name = name
        self.parent = parent
        self.n_branches = 0
        self.n_tasks = 0


class PrefixIndex:
    """The prefixes that tasks have left in one worker's cache."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._blocks: dict[int, _Block] = {}
        self._tasks: OrderedDict[int, _Block] = OrderedDict()
        """Task -> its last block; the oldest task first."""

    def __repr__(self) -> str:
        return f"<PrefixIndex blocks={len(self._blocks)} tasks={len(self._tasks)}>"

    @property
    def n_bytes(self) -> int:
        """Memory in use."""
        return _BLOCK_BYTES * len(self._blocks) + _TASK_BYTES * len(self._tasks)

    def match(self, blocks: Sequence[int]) -> int:
        """Count the leading blocks that are known, by bisection: a known one has all before it."""
        known, unknown = 0, len(blocks) + 1
        while unknown - known > 1:
            middle = (known + unknown) // 2
            if blocks[middle - 1] in self._blocks:
                known = middle
            else:
                unknown = middle
        return known

    def add(self, task_id: int, blocks: Sequence[int]) -> None:
        """Add the blocks that a task leaves; forget the oldest tasks beyond the bound."""
        self.forget(task_id)
        n_known = self.match(blocks)
        last = self._blocks[blocks[n_known - 1]] if n_known else None
        for name in blocks[n_known:]:
            if name in self._blocks:  # two prompts with one hash: what follows is not told apart
                break
            block = self._blocks[name] = _Block(name, last)
            if last is not None:
                last.n_branches += 1
            last = block
        if last is None:
            return
        last.n_tasks += 1
        self._tasks[task_id] = last
        while self.n_bytes > self._max_bytes:
            _, oldest = self._tasks.popitem(last=False)
            self._release(oldest)

    def shorten(self, task_id: int, blocks: Sequence[int]) -> None:
        """Keep only these of a task's blocks."""
        if task_id in self._tasks:
            self.add(task_id, blocks)

    def forget(self, task_id: int) -> None:
        """Drop what only this task has left."""
        last = self._tasks.pop(task_id, None)
        if last is not None:
            self._release(last)

    def clear(self) -> None:
        """Forget everything."""
        self._tasks.clear()
        self._blocks.clear()

    def shared_prefix(self, blocks: Sequence[int], n_known: int) -> tuple[int, int]:
        """Return how many of the known blocks several prompts share, and how many prompts do."""
        block = self._blocks[blocks[n_known - 1]] if n_known else None
        while block is not None:
            if block.n_branches >= _MANY:
                return n_known, block.n_branches
            block, n_known = block.parent, n_known - 1
        return 0, 1

    def _release(self, last: _Block) -> None:
        last.n_tasks -= 1
        block: _Block | None = last
        while block is not None and not block.n_tasks and not block.n_branches:
            del self._blocks[block.name]
            block = block.parent
            if block is not None:
                block.n_branches -= 1


class SessionPlacement(NamedTuple):
    """Where a session was last."""

    worker: str
    """Key of the connection."""
    n_tokens: int
    """What it left in the cache there."""


class SessionMap:
    """Where sessions were last; the one unused longest is forgotten first."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._placements: OrderedDict[int, SessionPlacement] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SessionMap {len(self._placements)}>"

    def __len__(self) -> int:
        return len(self._placements)

    @property
    def workers(self) -> set[str]:
        """Keys of the workers that had a session."""
        return {one.worker for one in self._placements.values()}

    def find(self, session: int) -> SessionPlacement | None:
        """Find where a session was last; 0 is no session."""
        return self._placements.get(session) if session else None

    def move(self, session: int, placement: SessionPlacement) -> None:
        """Note where a session is now."""
        if not session:
            return
        self._placements[session] = placement
        self._placements.move_to_end(session)
        if len(self._placements) > self._max_sessions:
            self._placements.popitem(last=False)

    def lost(self, worker: str) -> None:
        """Forget the sessions of a worker."""
        for session in [key for key, one in self._placements.items() if one.worker == worker]:
            del self._placements[session]
