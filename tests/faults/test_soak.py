"""A soak of some faults: no kind of fault loses a request, and all is accounted for."""

import asyncio

import pytest

from gateway.soak.faults import SOAK_FAULTS
from gateway.soak.soak import Growth, SoakPlan, soak

QUICK = ("kill", "raise", "link reset", "link break", "leave", "nonsense")


@pytest.mark.slow
def test_a_short_soak_loses_nothing() -> None:
    faults = tuple(fault for fault in SOAK_FAULTS if fault.name in QUICK)
    assert len(faults) == len(QUICK)
    plan = SoakPlan(seconds=0, n_faults=6, seed=15, n_between=2, faults=faults)
    told: list[str] = []
    rows = asyncio.run(soak(plan, told.append))
    assert all(row.is_well() for row in rows), "\n".join(told)
    assert rows[-1].n_sent > 20
    assert len(rows) > 2, "it did nothing but one kind of fault"


@pytest.mark.parametrize(
    ("mib_a_minute", "n_minutes", "found"),
    [
        (5.0, 3, []),
        (5.0, 10, ["gateway grew by 35.0 MiB in 7.0 minutes"]),
        (0.5, 60, []),
        (1.1, 60, ["gateway grew by 62.7 MiB in 57.0 minutes"]),
    ],
)
def test_growth_is_a_leak_where_no_table_explains_it(
    mib_a_minute: float, n_minutes: int, found: list[str]
) -> None:
    growth = Growth()
    for minute in range(1, n_minutes):
        growth.note({7: ("gateway", 60 + minute * mib_a_minute)}, minute * 60.0)
    assert growth.leaks() == found


def test_a_process_that_replaces_another_has_its_own_warm_up() -> None:
    growth = Growth()
    for minute in range(10):
        growth.note({7: ("gateway", 90.0)}, minute * 60.0)
    growth.note({8: ("gateway", 30.0)}, 600.0)
    growth.note({8: ("gateway", 60.0)}, 660.0)
    growth.note({8: ("gateway", 60.0)}, 780.0)
    assert growth.leaks() == []
