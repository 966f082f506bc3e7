"""How long the tasks of a worker may search for the tokens that their grammars allow."""

from types import SimpleNamespace

import pytest

from tests.worker.grammar.test_matcher import PIECES, rules, say
from worker.grammar.gbnf import automaton, matcher, search_time
from worker.grammar.gbnf.matcher import Matcher
from worker.grammar.gbnf.search_time import OWN_S, SHARED_S, SearchTime, SharedSearchTime
from worker.grammar.gbnf.symbols import GrammarError

AMBIGUOUS = 'root ::= "a" root | "a" root "b" | "a" root "c"'


class Clock:
    """Time that passes when somebody looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu_s = self.wall_s = 0.0
        stopped = SimpleNamespace(thread_time=self._look, monotonic=lambda: self.wall_s)
        for module in (automaton, matcher, search_time):
            monkeypatch.setattr(module, "time", stopped)

    def _look(self) -> float:
        self.cpu_s += 0.001
        return self.cpu_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_many_tasks_with_costly_grammars_do_not_each_delay_a_step_as_long_as_one(
    clock: Clock,
) -> None:
    shared, n_tasks = SharedSearchTime(), 16
    for _ in range(n_tasks):
        task = Matcher(rules(AMBIGUOUS), PIECES, shared)
        with pytest.raises(GrammarError, match="too ambiguous"):
            say(task, "a" * 64)
    a_task_s = OWN_S + 64 * search_time.A_TOKEN_S
    assert clock.cpu_s < 2 * (SHARED_S + n_tasks * a_task_s)


def test_a_task_with_an_ordinary_grammar_does_not_depend_on_the_shared_time(clock: Clock) -> None:
    shared = SharedSearchTime()
    shared.spend(SHARED_S)
    task = Matcher(rules('root ::= [a-z]* "!"'), PIECES, shared)
    for letter in "abcdefgh":
        say(task, letter)
        task.mask()


def test_a_large_vocabulary_has_as_much_more_time_as_tokens() -> None:
    shared = SharedSearchTime()
    shared.spend(SHARED_S)
    for n_vocab, scale in ((1000, 1), (200_000, 4)):
        time = SearchTime(shared, n_vocab)
        assert time.left_s() == pytest.approx(scale * OWN_S, abs=0.01)
        time.spend(scale * OWN_S)
        time.advance()
        assert time.left_s() == pytest.approx(scale * search_time.A_TOKEN_S, abs=0.01)


def test_the_shared_time_comes_back(clock: Clock) -> None:
    shared = SharedSearchTime()
    shared.spend(10.0)
    assert shared.left_s() == 0.0
    clock.wall_s = 0.4
    assert shared.left_s() == pytest.approx(0.1)
    clock.wall_s = 100.0
    assert shared.left_s() == SHARED_S
