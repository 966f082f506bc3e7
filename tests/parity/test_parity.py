"""Our pool answers as llama-server answered when `recorded/` was written."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import pytest

from tests.e2e.served import Served, serving
from tests.parity import recording
from tests.parity.ask import ask, generated
from tests.parity.cases import Case
from tests.parity.compare import missing, unequal
from tests.parity.decisions import DECISIONS, Decision
from tests.parity.setups import SETUPS, Setup

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

RECORDED = recording.read()
PAIRS = [
    pytest.param(name, case, id=case.name) for name, setup in SETUPS.items() for case in setup.cases
]
NOTHING = Decision(why="")


@contextmanager
def served(setup: Setup) -> Iterator[Served]:
    """One worker, started as the recorded server was."""
    arguments = ["-m", setup.model, "--workers", "1", "--port", "0", "-fa", "off"]
    with serving(*arguments, *setup.arguments) as one:
        one.complete("used", n_predict=1)  # /slots tells more of a slot that ran a task
        yield one


@pytest.fixture(scope="module")
def pool_of() -> Iterator[Callable[[str], Served]]:
    """The pool of a setup, started when the first case asks for it."""
    with ExitStack() as running:
        yield cache(lambda name: running.enter_context(served(SETUPS[name])))


@pytest.mark.parametrize(("setup", "case"), PAIRS)
def test_answers_like_llama_server(
    pool_of: Callable[[str], Served], setup: str, case: Case, pytestconfig: pytest.Config
) -> None:
    pool = pool_of(setup)
    if case.path == "/slots":
        pool.complete("Hi")  # it shows the last task, and the order of the cases is random
    theirs, ours = RECORDED[case.name], ask(pool.client, case)
    decision = DECISIONS.get(case.name, NOTHING)
    assert ours["status"] == (decision.status or theirs["status"]), ours["body"]
    if decision.status:
        assert ours["status"] != theirs["status"], "this decision is no difference any more"
    elif theirs["status"] != 200:
        assert (_message(ours) != _message(theirs)) == decision.message, ours["body"]
    else:
        assert set(missing(theirs["body"], ours["body"])) == decision.lacks
        is_gpu = pytestconfig.getoption("--gpu")
        are_others = _differ(case, theirs, ours, is_gpu=is_gpu)
        texts = (generated(theirs), generated(ours))
        assert decision.lacks or are_others == decision.values, (*texts, ours["body"])


def test_every_decision_is_about_a_case() -> None:
    assert set(DECISIONS) <= set(RECORDED)
    assert {param.values[1].name for param in PAIRS} == set(RECORDED)  # type: ignore[union-attr]


def _differ(case: Case, theirs: dict[str, Any], ours: dict[str, Any], *, is_gpu: bool) -> bool:
    """Compare what was generated; on a GPU, where rounding may part two texts, its first third."""
    if case.exact:
        return [*unequal(theirs["body"], ours["body"])] != []
    if not case.text:
        return False
    mine, other = generated(ours), generated(theirs)
    n = len(other) // 3 if is_gpu else None
    return mine[:n] != other[:n]


def _message(answer: dict[str, Any]) -> str:
    return str(answer["body"]["error"]["message"])
