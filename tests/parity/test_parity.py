"""Our pool answers as llama-server answered when `recorded.json` was written."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import python
from tests.e2e.served import Served
from tests.parity.ask import ask, generated
from tests.parity.cases import CASES, Case
from tests.parity.chats import CHATS
from tests.parity.compare import missing
from tests.parity.decisions import DECISIONS

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "recorded.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def pool() -> Iterator[Served]:
    """One worker of one slot, as the recorded server had."""
    arguments = ["--workers", "1", "-np", "1", "-c", "2048", "-t", "2", "--port", "0"]
    arguments += ["-a", "smol", "--metrics"]
    served = Served(python("-m", "worker.cli", "serve", *arguments))
    yield served.wait_until_ready()
    served.signal(signal.SIGTERM)
    assert served.wait(30) == 0
    served.close()


@pytest.mark.parametrize("case", (*CASES, *CHATS), ids=lambda case: case.name)
def test_answers_like_llama_server(pool: Served, case: Case) -> None:
    theirs, ours = RECORDED[case.name], ask(pool.client, case)
    decision = DECISIONS.get(case.name)
    if decision is not None and decision.status:
        assert ours["status"] == decision.status, ours["body"]
        return
    assert ours["status"] == theirs["status"], ours["body"]
    lacks = [one for one in missing(theirs["body"], ours["body"]) if not _is_decided(case, one)]
    assert lacks == []
    if theirs["status"] == 200:
        assert not case.text or generated(ours) == generated(theirs)
    elif decision is None or not decision.message:
        assert ours["body"]["error"]["message"] == theirs["body"]["error"]["message"]


def _is_decided(case: Case, difference: str) -> bool:
    decision = DECISIONS.get(case.name)
    return decision is not None and difference in decision.lacks
