"""Position of a task in its grammar: the tokens that may come next.

Its time is bounded (`search_time.py`); a task that has used it up ends with an error.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from worker.grammar.gbnf.automaton import Automaton, AutomatonState, TooCostlyError
from worker.grammar.gbnf.search_time import SearchTime, SharedSearchTime
from worker.grammar.gbnf.symbols import GrammarError
from worker.grammar.gbnf.trie import Ints, TokenTrie

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

Asked = TypeVar("Asked")
Found = TypeVar("Found")

_KEPT_MASKS = 32
"""Masks kept of one grammar; each has one byte a token."""


class TokenGrammar:
    """A grammar over the tokens of a model, shared by all tasks that have it."""

    def __init__(self, automaton: Automaton, trie: TokenTrie, eog: Sequence[int]) -> None:
        self.automaton = automaton
        self.trie = trie
        self.eog = np.array(eog, np.int32)
        self.lock = threading.Lock()
        """Held while a position is examined: continued answers are replayed on other threads."""
        self._masks: OrderedDict[AutomatonState, Mask] = OrderedDict()

    def mask(self, state: AutomatonState) -> Mask:
        """Return for every token whether it may follow."""
        found = self._masks.get(state)
        if found is not None:
            self._masks.move_to_end(state)
            return found
        found = self._masks[state] = self._search(state)
        if len(self._masks) > _KEPT_MASKS:
            self._masks.popitem(last=False)
        return found

    def _search(self, state: AutomatonState) -> Mask:
        """Walk down the tree of tokens, a level at a time, as far as the grammar goes."""
        trie, automaton = self.trie, self.automaton
        automaton.trim()
        allowed = np.zeros(trie.n_nodes, bool)
        nodes: Ints = np.zeros(1, np.int32)
        rows: Ints = np.full(1, automaton.row(state), np.int32)
        while len(nodes):
            nodes, parents = trie.children(nodes)
            rows = self._moved(rows.take(parents), trie.bytes.take(nodes))
            alive = rows.nonzero()[0]
            if len(alive) < len(nodes):
                nodes, rows = nodes.take(alive), rows.take(alive)
            allowed[nodes] = automaton.may_end.take(rows)
        mask: Mask = allowed[trie.node_of]
        named, others = automaton.named_tokens(state)
        if others:
            mask |= trie.node_of > 0
            if len(others) == 1:
                mask[[token for token in others if token < len(mask)]] = False
        mask[[token for token in named if token < len(mask)]] = True
        mask[self.eog] = state.is_complete
        return mask

    def _moved(self, rows: Ints, following: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> Ints:
        """Look up where bytes lead, and compute what is not known yet."""
        automaton = self.automaton
        at = rows << 8
        at |= following
        found: Ints = automaton.table.ravel().take(at)
        while len(found) and found.min() < 0:
            for state in np.unique(at[found < 0]).tolist():
                automaton.fill(state >> 8, state & 0xFF)
            found = automaton.table.ravel().take(at)
        return found


class Matcher:
    """Position of one task; used by one thread at a time."""

    def __init__(
        self, rules: TokenGrammar, pieces: Sequence[bytes], shared_time: SharedSearchTime
    ) -> None:
        self._rules = rules
        self._pieces = pieces
        self._state = rules.automaton.start
        self._eog = frozenset(rules.eog.tolist())
        self._time = SearchTime(shared_time, len(pieces))
        self._asked: tuple[int, AutomatonState | None] = -1, None
        """The token that was asked for last, and where it would lead."""

    def is_allowed(self, token: int) -> bool:
        """Return whether a token may come next; raises `GrammarError` if that takes too long."""
        with self._rules.lock:
            return self._allows(token)

    def _allows(self, token: int) -> bool:
        if token in self._eog:
            return self._state.is_complete
        if self._asked[0] != token:
            self._asked = token, self._spend(self._after, token)
        return self._asked[1] is not None

    def accept(self, token: int) -> None:
        """Advance by a token, which must be allowed."""
        with self._rules.lock:
            assert self._allows(token), "the grammar does not allow this token"
            self._time.advance()
            if self._asked[0] == token and self._asked[1] is not None:
                self._state = self._asked[1]
            self._asked = -1, None
            self._rules.automaton.trim()

    def mask(self) -> Mask:
        """Return for every token whether it may come next; raises like `is_allowed`."""
        with self._rules.lock:
            return self._spend(self._rules.mask, self._state)

    def _after(self, token: int) -> AutomatonState | None:
        automaton = self._rules.automaton
        piece = self._pieces[token]
        if not piece or 0 in piece:
            return None
        state: AutomatonState | None = self._state
        for byte in piece:
            assert state is not None
            state = state.moves[byte] if byte in state.moves else automaton.move(state, byte)
            if state is None:
                break
        if state is not None and not state.may_end:
            state = None
        if automaton.names_tokens:
            state = automaton.union(state, automaton.after_token(self._state, token))
        return state

    def _spend(self, work: Callable[[Asked], Found], asked: Asked) -> Found:
        start = time.thread_time()
        self._rules.automaton.deadline_s = start + self._time.left_s()
        try:
            return work(asked)
        except TooCostlyError as error:
            raise GrammarError("the grammar is too ambiguous to follow") from error
        finally:
            self._time.spend(time.thread_time() - start)
