"""A soak of some faults: no kind of fault loses a request, and all is accounted for."""

import asyncio

import pytest

from gateway.soak.faults import SOAK_FAULTS
from gateway.soak.soak import SoakPlan, soak

pytestmark = pytest.mark.slow

QUICK = ("kill", "raise", "link reset", "link break", "leave", "nonsense")


def test_a_short_soak_loses_nothing() -> None:
    faults = tuple(fault for fault in SOAK_FAULTS if fault.name in QUICK)
    assert len(faults) == len(QUICK)
    plan = SoakPlan(seconds=0, n_faults=6, seed=15, every_s=1, faults=faults)
    told: list[str] = []
    rows = asyncio.run(soak(plan, told.append))
    assert all(row.is_well() for row in rows), "\n".join(told)
    assert rows[-1].n_sent > 20
    assert len(rows) > 2, "it did nothing but one kind of fault"
