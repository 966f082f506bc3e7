"""The share of the fault matrix that runs with the other tests; `make faults` runs all of it."""

import asyncio
import os

import pytest

from gateway.soak.scene import ExpectedAnswers
from tests.faults.case import FaultCase, run_case
from tests.faults.matrix import MATRIX

pytestmark = pytest.mark.slow

SEED = 15
EXPECTED = ExpectedAnswers(SEED)


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
SHARED = [
    pytest.param(case, id=case.name, marks=[NEEDS_ROOT] if case.needs_root else [])
    for case in MATRIX
    if case.is_shared
]


@pytest.mark.parametrize("case", SHARED)
def test_loses_nothing(case: FaultCase) -> None:
    row = asyncio.run(run_case(case, EXPECTED))
    assert case.passes(row), "\n".join([str(row.counts), *row.problems()])


def test_names_are_unique() -> None:
    names = [case.name for case in MATRIX]
    assert len(names) == len(set(names))
