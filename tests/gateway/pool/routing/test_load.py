"""Predictions: measured where something was measured, and sane before."""

import pytest

from gateway.pool.routing.load import PendingPrefill, Ratio, Throughput, crowding_s, slot_wait_s


def test_a_mean_forgets_what_is_long_ago() -> None:
    one = Ratio(500.0, 0.05)
    assert one.value == 500.0
    for _ in range(3):
        one.add(100, 1)
    assert one.value == pytest.approx(100, rel=0.1)
    for _ in range(30):
        one.add(900, 1)
    assert one.value == pytest.approx(900, rel=0.1)
    assert repr(Ratio(2.0, 1.0)) == "<Ratio 2>"


def test_a_worker_that_was_not_measured_is_taken_for_what_the_others_are() -> None:
    model = Throughput()
    measured, fresh = Throughput(model), Throughput(model)
    measured.reading.add(4000, 1)
    assert fresh.reading.value == pytest.approx(measured.reading.value, rel=0.1)
    fresh.reading.add(1000, 1)
    assert fresh.reading.value < 1200 < measured.reading.value


def test_reading_is_measured_over_all_prompts_at_once() -> None:
    load = PendingPrefill(pace := Throughput())
    for i in range(4):
        load.assigned((i, 0), 600)
        load.begun((i, 0), 600, 10.0)
    for i in range(4):
        load.read((i, 0), 12.0)
    assert pace.reading.value == pytest.approx(1200, rel=0.2)


def test_short_prompts_say_nothing_of_the_speed() -> None:
    load = PendingPrefill(pace := Throughput())
    load.assigned((1, 0), 3)
    load.begun((1, 0), 3, 0.0)
    load.read((1, 0), 5.0)
    assert pace.reading.value == 500.0


def test_what_is_assigned_must_be_read_before() -> None:
    load = PendingPrefill(Throughput())
    load.assigned((1, 0), 1000)
    load.assigned((2, 0), 500)
    assert load.wait_s(7.0) == pytest.approx(3.0)
    load.begun((1, 0), 250, 8.0)
    assert load.wait_s(8.5) == pytest.approx(1.0)
    load.dropped((2, 0))
    assert load.wait_s(60.0) == 0.0
    load.read((1, 0), 60.0)
    load.begun((9, 0), 5, 0.0)
    load.read((9, 0), 0.0)
    assert load.wait_s(60.0) == 0.0
    assert repr(load).startswith("<PendingPrefill prompts=0 <Throughput read=")


def test_a_slot_is_waited_for_as_long_as_tasks_last() -> None:
    pace = Throughput()
    for _ in range(20):
        pace.service.add(8.0, 1)
    assert slot_wait_s(pace, 4, 3) == 0
    assert slot_wait_s(pace, 4, 4) == pytest.approx(2.0, rel=0.2)
    assert slot_wait_s(pace, 4, 5) == pytest.approx(4.0, rel=0.2)


def test_company_costs_time() -> None:
    assert (
        crowding_s(Throughput(), 0) == 0 < crowding_s(Throughput(), 1) < crowding_s(Throughput(), 5)
    )
