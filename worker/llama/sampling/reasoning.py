"""Watches reasoning: ends it when its budget is used up, and keeps lazy grammars out of it.

The rules are llama.cpp's (common/reasoning-budget.cpp), but marks are searched in the text: a mark
that is not a single token is tokenized differently beside other text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from protocol.wire.sampling import SamplingParams

Tokenize = Callable[[str], Sequence[int]]


class _BudgetState(Enum):
    IDLE = auto()
    COUNTING = auto()
    WAITING = auto()
    """The budget is used up in the middle of a character."""
    FORCING = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningBudget:
    """Reasoning settings of a task, from its prompt and parameters."""

    start: str
    ends: Sequence[str]
    n_tokens: int
    """-1 is no limit."""
    forced: Sequence[int]
    """Tokens of the text that ends it."""


class ReasoningTracker:
    """Follows the tokens of one task; a new block of reasoning has a new budget."""

    def __init__(self, budget: ReasoningBudget, pieces: Sequence[bytes]) -> None:
        self._budget = budget
        self._pieces = pieces
        self._starts = _Finder([budget.start])
        self._ends = _Finder(budget.ends)
        self._state = _BudgetState.IDLE
        self._n_left = 0
        self._n_forced = 0
        self.n_tokens = 0
        """Tokens of the answer so far."""
        self.ended_at: list[int] = []
        """Numbers of tokens after which a client ended the reasoning."""
        self.ended_with = ""
        """The text that ended the reasoning last."""

    @property
    def is_open(self) -> bool:
        """Reasoning is under way."""
        return self._state not in (_BudgetState.IDLE, _BudgetState.DONE)

    @property
    def forced(self) -> int | None:
        """The token that must come next, if one must."""
        return self._budget.forced[self._n_forced] if self._state is _BudgetState.FORCING else None

    def end(self) -> bool:
        """End the current reasoning; return False if there is none, or it is ending."""
        if self._state is not _BudgetState.COUNTING or not self._budget.forced:
            return False
        self.ended_at.append(self.n_tokens)
        self._force()
        return True

    def give_up(self) -> None:
        """Let the reasoning go on, because the token that should end it is not allowed."""
        self._state = _BudgetState.DONE

    def accept(self, token: int) -> None:
        """Take a token."""
        self.n_tokens += 1
        piece = self._pieces[token]
        match self._state:
            case _BudgetState.IDLE | _BudgetState.DONE:
                if self._starts.push(piece):
                    self._begin()
            case _BudgetState.FORCING:
                self.ended_with = self._ends.push(piece)
                # Tokens of the generation prompt may come between.
                self._n_forced = self._n_forced + 1 if token == self.forced else 0
                if self._n_forced == len(self._budget.forced):
                    self._state = _BudgetState.DONE
            case _:
                self._count(piece)

    def _begin(self) -> None:
        self._ends.clear()
        self.ended_with = ""
        self._state = _BudgetState.COUNTING
        self._n_left = self._budget.n_tokens
        if self._n_left == 0:
            self._force()

    def _count(self, piece: bytes) -> None:
        self.ended_with = self._ends.push(piece)
        if self.ended_with:
            self._state = _BudgetState.DONE
            return
        self._n_left -= 1
        if self._n_left == 0 or self._state is _BudgetState.WAITING:
            if _is_whole(piece):
                self._force()
            else:
                self._state = _BudgetState.WAITING

    def _force(self) -> None:
        self._ends.clear()
        self._n_forced = 0
        self._state = _BudgetState.FORCING if self._budget.forced else _BudgetState.DONE


class _Finder:
    """Looks for texts in bytes that are still coming."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [(text.encode(errors="replace"), text) for text in texts]
        self._longest = max(len(data) for data, _ in self._texts)
        self._tail = b""

    def push(self, piece: bytes) -> str:
        """Take bytes; return the text that they complete, the longest, or nothing."""
        seen = self._tail + piece
        found = [(data, text) for data, text in self._texts if data in seen]
        self._tail = b"" if found else seen[max(0, len(seen) - self._longest + 1) :]
        return max(found)[1] if found else ""

    def clear(self) -> None:
        self._tail = b""


def _is_whole(piece: bytes) -> bool:
    """Return whether bytes end with a character's end."""
    for n, byte in enumerate(reversed(piece[-4:]), 1):
        if byte & 0xC0 != 0x80:
            expected = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return n >= expected
    return not piece


def open_reasoning_tracker(
    params: SamplingParams, pieces: Sequence[bytes], tokenize: Tokenize, *, is_lazy: bool
) -> ReasoningTracker | None:
    """Track a task's reasoning, if anything depends on it; its prompt may have started it."""
    start, ends = params.reasoning_budget_start_tag, params.reasoning_budget_end_tags
    is_wanted = is_lazy or params.reasoning_budget_tokens >= 0 or params.reasoning_control
    if not start or not ends or not is_wanted:
        return None
    message = params.reasoning_budget_message
    budget = ReasoningBudget(
        start=start,
        ends=ends,
        n_tokens=params.reasoning_budget_tokens,
        forced=[*(tokenize(message) if message else ()), *tokenize(ends[0])],
    )
    reasoning = ReasoningTracker(budget, pieces)
    prompt = params.generation_prompt
    for i, token in enumerate(tokenize(prompt) if prompt else ()):
        # Some tokenizers write a space before the first token.
        if i or not pieces[token][:1].isspace() or prompt[0].isspace():
            reasoning.accept(token)
    reasoning.n_tokens = 0
    return reasoning
