"""Checkpoints: how a prefix is used again where memory cannot be cut anywhere.

A recurrent layer has one state for all that was read, and a sliding window keeps only its last
tokens. Such a sequence can go on from its end, from a place whose whole window is still there, or
from one where a checkpoint was made: a copy of that state or window in the host's memory. The rest
of the model's memory, if it has any, stays in the context and is cut there.

Checkpoints are made where later prompts are likely to part from this one: where this prompt parts
from those that are known (as in Marconi, Pan et al., 2024), and just before its end, where a chat
template may write an old answer in another way than it was generated.
"""

from collections.abc import Sequence
from operator import attrgetter

from worker.engine.backend import Backend
from worker.engine.cache.host_transfer import CopyTime
from worker.engine.cache.prefix import common_prefix
from worker.engine.cache.radix import RadixMatch
from worker.engine.cache.sequences import CacheLimits, last_stop
from worker.engine.media import count_positions, whole_pieces
from worker.engine.sequence_state import Checkpoint
from worker.engine.slot import CacheNamespace, Slot, SlotState, SlotTask

BEFORE_END = 4
"""Tokens of a prompt after its last checkpoint. Source: llama-server's, chosen for the beginning of
an answer that a chat template writes."""
EARLIER = 512
"""Tokens between the last two checkpoints of a prompt. Source: llama-server's `n_ubatch`; a second
chat that begins as the first one finds a place before they part."""
_LONGEST_START = 32
"""Maximum number of tokens that two messages begin with by chance. Source: the name of a role, and
a sentence."""
MIN_TOKENS = 16
"""Minimum number of tokens before a checkpoint. Source: `MIN_SHARED` of the cache."""


class Checkpoints:
    """Makes and uses the checkpoints of all slots; used by the engine's thread only."""

    def __init__(
        self, backend: Backend, slots: Sequence[Slot], limits: CacheLimits, copies: CopyTime
    ) -> None:
        self._states = backend.states
        self._copies = copies
        self._backend = backend
        self._slots = slots
        self._limits = limits
        self.is_needed = backend.states.needs_checkpoints
        """Whether a sequence can be cut only near its end and at checkpoints."""

    # ---- making them --------------------------------------------------------------------------

    def plan(self, slot: Slot, n_alike: int) -> None:
        """Decide where checkpoints of a new task are made.

        Another prompt begins with the same `n_alike` tokens and goes on otherwise.
        """
        run = slot.active
        if self.is_needed and run.task.params.cache_prompt:
            n_last = len(run.reading) - BEFORE_END
            for n in (n_last, n_last - EARLIER, self._message_start(run.reading, n_alike)):
                self._stop_at(run, min(n, n_last))
            self.make(slot)  # where it was cut

    def stop_at(self, run: SlotTask, n: int) -> None:
        """Let a task that reads its prompt make a checkpoint for others that begin alike."""
        if self.is_needed:
            self._stop_at(run, self._message_start(run.reading, n))

    def make_due(self) -> None:
        """Make a checkpoint of each slot that has read up to a place where one is wanted.

        At the beginning of a step, which reads the less for it: the window of Gemma 3 has hundreds
        of megabytes, and the streams wait for its copy.
        """
        if self.is_needed:
            for slot in self._slots:
                if slot.state is SlotState.PREFILL and not slot.has_part:
                    self.make(slot)

    def make(self, slot: Slot) -> None:
        """Make a checkpoint if a slot has read up to a place where one is wanted."""
        n = len(slot.tokens)
        if n not in slot.active.stops or any(each.n == n for each in slot.checkpoints):
            return
        self._add(slot)

    def _add(self, slot: Slot) -> Checkpoint:
        """Make a checkpoint at the end of a slot, and drop others beyond the limits."""
        with self._copies.of_checkpoint():
            state = self._states.checkpoint(slot.id)
        checkpoint = Checkpoint(len(slot.tokens), slot.n_pos, state)
        slot.checkpoints.append(checkpoint)
        if len(slot.checkpoints) > self._limits.n_checkpoints:
            _thin(slot.checkpoints)
        while 0 < self._limits.checkpoint_bytes < self.n_bytes:
            keeping = [slot for slot in self._slots if slot.checkpoints]
            _thin(min(keeping, key=lambda slot: (slot.run is not None, slot.last_used)).checkpoints)
        return checkpoint

    @property
    def n_bytes(self) -> int:
        """Bytes of all checkpoints; one that slots share counts once."""
        found = {id(each.state): each.state for slot in self._slots for each in slot.checkpoints}
        return sum(map(len, found.values()))

    def _message_start(self, tokens: Sequence[int], n: int) -> int:
        """Return where the message begins in which two prompts part after `n` tokens.

        It begins with a control token of the chat template, and two messages may have a first word
        in common. Without such a token shortly before, return `n`.
        """
        vocabulary = self._backend.vocabulary
        for place in range(n, max(0, n - _LONGEST_START), -1):
            token = tokens[place - 1]
            if token >= 0 and not vocabulary.pieces[token] and vocabulary.special_pieces[token]:
                return place
        return n

    def _stop_at(self, run: SlotTask, n: int) -> None:
        n = whole_pieces(run.task.media, n)
        if n > 0 and run.reading[n - 1] < 0:
            return  # behind an image no position tells where the sequence ends
        if self._limits.n_checkpoints > 0 and n >= MIN_TOKENS and n not in run.stops:
            run.stops.append(n)

    # ---- using them ---------------------------------------------------------------------------

    def holders(
        self, namespace: CacheNamespace, prompt: Sequence[int], *, are_own: bool = False
    ) -> RadixMatch:
        """Return how much of a prompt slots hold up to where they can be cut, and which those are.

        One token of the prompt is always left to read. Of its own cells, or of a copy of them all,
        more can be used than of cells that are shared (`last_cut`): with `are_own` that counts.
        """
        are_own = are_own or not self._backend.is_unified
        found = {}
        for slot in self._slots:
            if slot.namespace == namespace:
                n = min(common_prefix(slot.tokens, prompt), len(prompt) - 1)
                found[slot.id] = self.last_cut(slot, prompt, n) if are_own else _last_stop(slot, n)
        n = max(found.values(), default=0)
        return RadixMatch(n, frozenset(seq for seq, held in found.items() if held == n > 0))

    def n_alike(self, namespace: CacheNamespace, prompt: Sequence[int]) -> int:
        """Return how many leading tokens of a prompt any slot holds."""
        alike = [slot for slot in self._slots if slot.namespace == namespace]
        return max((common_prefix(slot.tokens, prompt) for slot in alike), default=0)

    def last_cut(self, slot: Slot, prompt: Sequence[int], n: int) -> int:
        """Return where to cut a slot whose first `n` tokens are those of a prompt.

        Rather at the start of the message in which they part: others may part there as well.
        """
        start = self._message_start(prompt, n) if n < len(prompt) - 1 else n
        for place in (start, n):
            if self._can_cut(slot, place):
                return place
        return _last_stop(slot, n)

    def go_back(self, slot: Slot, n: int) -> int:
        """Cut a slot where that is possible last within `n` tokens, or empty it; return where."""
        if self._can_cut(slot, n):
            self._backend.remove(slot.id, _position(slot, n))
            return n
        checkpoint = _last(slot.checkpoints, n)
        if checkpoint is not None and self._states.go_back(slot.id, checkpoint):
            return checkpoint.n
        self._backend.remove(slot.id, 0)
        return 0

    def share(self, source: Slot, target: Slot, n: int) -> bool:
        """Complete the first `n` tokens of a slot that shares what can be shared of another's."""
        if not self._backend.is_unified and self._can_cut(source, n):
            self._backend.remove(target.id, _position(source, n))
        else:
            checkpoint = _last(source.checkpoints, n)
            if checkpoint is None or checkpoint.n < n:
                checkpoint = self._add(source)  # others may follow
            with self._copies.of_checkpoint():
                if not self._states.go_back(target.id, checkpoint):
                    return False
        target.checkpoints = [each for each in source.checkpoints if each.n <= n]
        return True

    def _can_cut(self, slot: Slot, n: int) -> bool:
        """Whether a slot can be cut after `n` tokens, of which the last is no image's."""
        if not 0 < n < len(slot.tokens) or slot.tokens[n - 1] < 0:
            return False
        return _position(slot, n) >= self._states.first_cut(slot.id)


def _position(slot: Slot, n: int) -> int:
    """Return the position behind the first `n` tokens of a slot."""
    return count_positions(slot.tokens[:n]) if slot.n_saved else n


def _last_stop(slot: Slot, n: int) -> int:
    """Return the last place within `n` of a slot's tokens up to which others can take them."""
    return last_stop(-1 if slot.has_part else len(slot.tokens), slot.checkpoints, n)


def _thin(checkpoints: list[Checkpoint]) -> None:
    """Drop the checkpoint whose neighbours are nearest to each other; the last one goes last."""
    places = [0, *(each.n for each in checkpoints)]
    gaps = [after - before for before, after in zip(places, places[2:], strict=False)]
    del checkpoints[gaps.index(min(gaps)) if gaps else 0]


def _last(checkpoints: Sequence[Checkpoint], n: int) -> Checkpoint | None:
    """Return the last checkpoint within `n` tokens."""
    return max((each for each in checkpoints if each.n <= n), key=attrgetter("n"), default=None)
