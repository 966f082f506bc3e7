"""What may follow: the states of a grammar, found as they are needed, and where each byte leads.

A state is a set of stacks of places, as in llama.cpp, but stacks share their lower parts and states
are remembered: what was found once for a state holds for every token and every task with the same
grammar. So the time is bounded by the number of states and not by the number of ways to them, which
llama.cpp follows one by one: 3 to the power of a token's length with `root ::= "-" root |
"-" root "a" | "-" root "b"`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from worker.grammar.gbnf.symbols import CharSet, Grammar, GrammarError, SymbolKind

MAX_STACKS = 20_000
"""Of one state: an enumeration has one a value."""
MAX_STATES = 4096
"""Remembered from token to token; each has a row of 1 KiB."""
MAX_PLACES = 100_000
"""Remembered from token to token; each takes some 150 bytes."""
MAX_HELD = 250_000
"""Stacks of all remembered states together; each takes some 100 bytes."""
_MAX_SEARCH_STATES = 4 * MAX_STATES
_MAX_SEARCH_PLACES = 2 * MAX_PLACES
_MAX_SEARCH_HELD = 2 * MAX_HELD
"""The same, of a single search."""
_KEPT_PARTITIONS = 256
_STACKS_PER_CHECK = 1000
"""Stacks that are followed before the time is looked at again: 2 ms. Many may be the same."""

_DEAD, _UNKNOWN = 0, -1
"""Row of a text that cannot be continued, and of a step that was not computed yet."""
_N_BYTES = 256
_BYTES = frozenset(range(_N_BYTES))
_ASCII = 128


Partition = tuple[Mapping[int, None], Sequence[tuple[tuple[int, ...], Mapping[int, Sequence[int]]]]]
"""The bytes in none of some sets; and which sets hold, and the bytes for which they do, by the
bytes that still follow."""


class TooCostlyError(Exception):
    """A state has too many stacks, or the time is over."""


class StackPlace:
    """A stack: a place in the grammar, and what comes after the rule that it stands in."""

    __slots__ = ("at", "parent")

    def __init__(self, at: int, parent: "StackPlace | None") -> None:
        self.at = at
        self.parent = parent


class AutomatonState:
    """Where a text may stand, after whole characters or within one."""

    __slots__ = ("is_complete", "may_end", "moves", "n_left", "places", "row", "then", "value")

    def __init__(
        self, places: Sequence[StackPlace], *, is_complete: bool, n_left: int = 0, value: int = 0
    ) -> None:
        self.places = places
        self.is_complete = is_complete
        """The text may end here."""
        self.n_left = n_left
        """Bytes that the character lacks."""
        self.value = value
        self.then: AutomatonState | None = None
        """Where it leads, whichever character it becomes."""
        self.may_end = True
        """A token may end here."""
        self.moves: dict[int, AutomatonState | None] = {}
        self.row = _UNKNOWN


class Automaton:
    """The states of one grammar; not for two threads at a time."""

    def __init__(self, grammar: Grammar) -> None:
        """Find the first state; raises `GrammarError` if that alone is too much."""
        self._grammar = grammar
        self.names_tokens = (
            SymbolKind.TOKEN in grammar.kinds or SymbolKind.OTHER_TOKEN in grammar.kinds
        )
        self._covers: dict[int, tuple[bytes, bytes]] = {}
        self._partitions: dict[tuple[int, ...], Partition] = {}
        self._places: dict[tuple[int, int], StackPlace] = {}
        self._states: dict[object, AutomatonState] = {}
        self._n_held = 0
        """Stacks of `_states`; one that several states have counts for each."""
        self._rows: list[AutomatonState | None] = [None]
        self.table = np.zeros((64, _N_BYTES), np.int32)
        """Row of a state, byte -> row of the next; 0 is none, below 0 is unknown."""
        self.may_end = np.zeros(64, bool)
        self.deadline_s = float("inf")
        """When a search must be given up (`time.thread_time`)."""
        try:
            starts = [(at, None) for at in grammar.alternatives[grammar.root]]
            self.start = self._closure(starts)
        except TooCostlyError as error:
            raise GrammarError("too many ways to begin") from error

    def move(self, state: AutomatonState, byte: int) -> AutomatonState | None:
        """Return where a byte leads; None is nowhere."""
        if byte not in state.moves:
            self._find(state, byte)
        return state.moves[byte]

    def row(self, state: AutomatonState) -> int:
        """Return a state's row in `table`; it holds until `trim`."""
        if state.row == _UNKNOWN:
            if len(self._rows) >= len(self.table):
                self.table = np.concatenate([self.table, np.zeros_like(self.table)])
                self.may_end = np.concatenate([self.may_end, np.zeros_like(self.may_end)])
            state.row = len(self._rows)
            self._rows.append(state)
            self.table[state.row] = _UNKNOWN
            self.may_end[state.row] = state.may_end
        return state.row

    def fill(self, row: int, byte: int) -> None:
        """Find out where a byte leads from a row that does not know it."""
        if self.table[row, byte] != _UNKNOWN:
            return  # it was found with another
        state = self._rows[row]
        assert state is not None
        self.move(state, byte)
        if len(self._rows) > _MAX_SEARCH_STATES:
            raise TooCostlyError
        rows = [_DEAD if target is None else self.row(target) for target in state.moves.values()]
        self.table[row, list(state.moves)] = rows

    def trim(self) -> bool:
        """Clear the cache if it is too large; return whether it was. States in use stay valid."""
        n_states, n_places = len(self._states), len(self._places)
        if n_states <= MAX_STATES and n_places <= MAX_PLACES and self._n_held <= MAX_HELD:
            return False
        for state in self._rows[1:]:
            assert state is not None
            state.row = _UNKNOWN
            state.moves = {}
        for state in self._states.values():
            state.moves = {}
        self._rows = [None]
        self._states.clear()
        self._n_held = 0
        self._places.clear()
        self.table, self.may_end = self.table[:64].copy(), self.may_end[:64].copy()
        return True

    def after_token(self, state: AutomatonState, token: int) -> AutomatonState | None:
        """Return where a token leads by its number, for grammars that name tokens."""
        kinds, values = self._grammar.kinds, self._grammar.values
        found = [
            (place.at + 1, place.parent)
            for place in state.places
            if (kinds[place.at] == SymbolKind.TOKEN and values[place.at] == token)
            or (kinds[place.at] == SymbolKind.OTHER_TOKEN and values[place.at] != token)
        ]
        return self._closure(found) if found and not state.n_left else None

    def named_tokens(self, state: AutomatonState) -> tuple[set[int], set[int]]:
        """Return the tokens that a state allows by number, and those each of which it excludes."""
        kinds, values = self._grammar.kinds, self._grammar.values
        named, others = set[int](), set[int]()
        if not state.n_left:
            for place in state.places:
                if kinds[place.at] == SymbolKind.TOKEN:
                    named.add(values[place.at])
                elif kinds[place.at] == SymbolKind.OTHER_TOKEN:
                    others.add(values[place.at])
        return named, others

    def union(
        self, state: AutomatonState | None, other: AutomatonState | None
    ) -> AutomatonState | None:
        """Return the state that is both; one within a character yields to another."""
        if state is None or other is None or state.n_left:
            return other or state
        if other.n_left:
            return state
        places = {id(place): place for place in (*state.places, *other.places)}
        return self._intern(places, is_complete=state.is_complete or other.is_complete)

    # ---- states -------------------------------------------------------------------------------

    def _closure(self, starts: Iterable[tuple[int, StackPlace | None]]) -> AutomatonState:
        """Follow rules from some places down to all characters and tokens that may come next."""
        self._check_time()
        kinds, values = self._grammar.kinds, self._grammar.values
        rules = self._grammar.alternatives
        waiting = list(starts)
        seen = set[tuple[int, int]]()
        places: dict[int, StackPlace] = {}
        is_complete = False
        n_followed = 0
        while waiting:
            n_followed += 1
            if n_followed % _STACKS_PER_CHECK == 0:
                self._check_time()
            at, parent = waiting.pop()
            while parent is not None and kinds[at] == SymbolKind.END:
                at, parent = parent.at, parent.parent
            if kinds[at] == SymbolKind.END:
                is_complete = True
                continue
            key = at, id(parent)
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > MAX_STACKS:
                raise TooCostlyError
            if kinds[at] == SymbolKind.RULE:
                after = parent if kinds[at + 1] == SymbolKind.END else self._place(at + 1, parent)
                waiting += [(start, after) for start in rules[values[at]]]
            else:
                place = self._place(at, parent)
                places[id(place)] = place
        return self._intern(places, is_complete=is_complete)

    def _check_time(self) -> None:
        if time.thread_time() > self.deadline_s:
            raise TooCostlyError

    def _place(self, at: int, parent: StackPlace | None) -> StackPlace:
        key = at, id(parent)
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MAX_SEARCH_PLACES:
                raise TooCostlyError
            place = self._places[key] = StackPlace(at, parent)
        return place

    def _intern(self, places: dict[int, StackPlace], *, is_complete: bool) -> AutomatonState:
        key = frozenset(places), is_complete
        state = self._states.get(key)
        if state is None:
            self._n_held += len(places)
            if self._n_held > _MAX_SEARCH_HELD:
                raise TooCostlyError
            state = AutomatonState(tuple(places.values()), is_complete=is_complete)
            self._states[key] = state
        return state

    # ---- moves --------------------------------------------------------------------------------

    def _find(self, state: AutomatonState, byte: int) -> None:
        """Find out where a byte leads, and what is found with it."""
        if state.n_left:
            state.moves[byte] = self._continued(state, byte)
        else:
            self._begin_characters(state)
            if byte not in state.moves:
                state.moves[byte] = self._part(state, *_first(byte))

    def _begin_characters(self, state: AutomatonState) -> None:
        """Find all bytes after which each character of a set is as good as any other."""
        by_set: dict[int, list[StackPlace]] = {}
        for place in state.places:
            if self._grammar.kinds[place.at] == SymbolKind.CHARS:
                by_set.setdefault(self._grammar.values[place.at], []).append(place)
        groups = list(by_set.values())
        refused, partition = self._partition(tuple(by_set))
        state.moves.update(refused)
        for holding, found in partition:
            target = self._beyond([place for i in holding for place in groups[i]])
            for n_left, some in found.items():
                state.moves.update(dict.fromkeys(some, self._within(target, n_left)))

    def _partition(self, sets: tuple[int, ...]) -> Partition:
        """Group the first bytes of characters by the sets to which all their characters belong."""
        known = self._partitions.get(sets)
        if known is not None:
            return known
        covers = [self._cover(number) for number in sets]
        holding: dict[int, list[int]] = {}
        for i, (inside, _) in enumerate(covers):
            for byte in inside:
                holding.setdefault(byte, []).append(i)
        unclear = {byte for _, some in covers for byte in some}
        groups: dict[tuple[int, ...], dict[int, list[int]]] = {}
        for byte in holding.keys() - unclear:
            by_length = groups.setdefault(tuple(holding[byte]), {})
            by_length.setdefault(_first(byte)[1], []).append(byte)
        if len(self._partitions) > _KEPT_PARTITIONS:
            self._partitions.clear()
        refused = dict.fromkeys(_BYTES.difference(holding, unclear))
        found = self._partitions[sets] = refused, list(groups.items())
        return found

    def _cover(self, number: int) -> tuple[bytes, bytes]:
        """Return the first bytes all of whose characters are in a set, and the unclear."""
        if number not in self._covers:
            self._check_time()
            self._covers[number] = _cover(self._grammar.sets[number])
        return self._covers[number]

    def _beyond(self, places: Sequence[StackPlace]) -> AutomatonState | None:
        """Return the state behind the characters at some places."""
        return self._closure((p.at + 1, p.parent) for p in places) if places else None

    def _within(self, target: AutomatonState | None, n_left: int) -> AutomatonState | None:
        """Return the state `n_left` bytes of any value before another."""
        if target is None or not n_left:
            return target
        key = id(target), n_left
        state = self._states.get(key)
        if state is None:
            state = AutomatonState((), is_complete=False, n_left=n_left)
            state.then = target
            self._states[key] = state
        return state

    def _part(self, before: AutomatonState, value: int, n_left: int) -> AutomatonState | None:
        """Return the state within a character whose first bits are known."""
        if n_left < 0:
            return None
        low, high = _range(value, n_left)
        places = [place for place in before.places if self._is_char(place)]
        covers = [self._set_at(place).covers(low, high) for place in places]
        if value > 1 and None not in covers:
            inside = [place for place, is_in in zip(places, covers, strict=True) if is_in]
            return self._within(self._beyond(inside), n_left)
        state = AutomatonState(places, is_complete=False, n_left=n_left, value=value)
        # As llama.cpp: a set of all but some characters refuses a token that ends where one of
        # these may still come; and an overlong spelling is none.
        is_overlong = n_left == 1 and value < 2
        state.may_end = not is_overlong and any(
            is_in or (is_in is None and not self._set_at(place).is_negated)
            for place, is_in in zip(places, covers, strict=True)
        )
        return state

    def _continued(self, state: AutomatonState, byte: int) -> AutomatonState | None:
        if byte >> 6 != 0b10:
            return None
        if state.then is not None:
            return self._within(state.then, state.n_left - 1)
        value, n_left = state.value << 6 | byte & 0x3F, state.n_left - 1
        if n_left:
            return self._part(state, value, n_left)
        return self._beyond([place for place in state.places if self._set_at(place).holds(value)])

    def _is_char(self, place: StackPlace) -> bool:
        return self._grammar.kinds[place.at] == SymbolKind.CHARS

    def _set_at(self, place: StackPlace) -> CharSet:
        return self._grammar.sets[self._grammar.values[place.at]]


_N_BYTES_MORE = (0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, 1, 1, 2, 3)
"""By the first four bits of a character's first byte; -1 begins none."""


def _first(byte: int) -> tuple[int, int]:
    """Return the bits of a character that its first byte holds, and how many bytes follow."""
    n_left = _N_BYTES_MORE[byte >> 4]
    return byte & (1 << 7 - n_left) - 1 if n_left > 0 else byte, n_left


def _range(value: int, n_left: int) -> tuple[int, int]:
    """Return the first and the last character that some bits may become."""
    low = value << n_left * 6
    high = low | (1 << n_left * 6) - 1
    if low == 0 and n_left > 1:
        low = 1 << (11 if n_left == 2 else 16)
    return low, high


def _cover(chars: CharSet) -> tuple[bytes, bytes]:
    if not chars.is_negated and all(high < _ASCII for _, high in chars.ranges):
        # most sets are one letter of a literal
        return b"".join(bytes(range(low or 1, high + 1)) for low, high in chars.ranges), b""
    found = [_covers_byte(chars, byte) for byte in range(_N_BYTES)]
    inside = bytes(byte for byte, is_in in enumerate(found) if is_in)
    return inside, bytes(byte for byte, is_in in enumerate(found) if is_in is None)


def _covers_byte(chars: CharSet, byte: int) -> bool | None:
    """Return whether all characters that begin with a byte belong to a set; None is some."""
    value, n_left = _first(byte)
    if n_left < 0 or byte == 0:
        return False
    if n_left and value < 2:
        return None  # it may become an overlong spelling, within which no token may end
    return chars.covers(*_range(value, n_left)) if n_left else chars.holds(byte)
