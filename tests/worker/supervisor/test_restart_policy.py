"""Back-off and quarantine."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import EXIT_CONFIG
from worker.supervisor.children.exit_reasons import abort_reason, explain
from worker.supervisor.children.restart_policy import (
    MAX_DELAY_S,
    WINDOW_S,
    RestartPolicy,
    RunHistory,
    judge,
)

POLICY = RestartPolicy()


def lives(*ready: float, gap_s: float = 1.0, policy: RestartPolicy = POLICY) -> list[float | None]:
    """Return the delay after each death of a process that was ready for these times."""
    history, now, delays = RunHistory(), 0.0, []
    for ready_s in ready:
        now += ready_s + gap_s
        verdict = judge(history, now=now, ready_s=ready_s, exit_code=1, policy=policy)
        history = verdict.history
        delays.append(verdict.delay_s)
        if verdict.delay_s is None:
            break
        now += verdict.delay_s
    return delays


def test_delay_doubles_and_the_fifth_death_is_quarantine() -> None:
    assert lives(0, 0, 0, 0, 0) == [0.5, 1, 2, 4, 600]
    for_ever = RestartPolicy(quarantine_s=None)
    assert lives(0, 0, 0, 0, 0, policy=for_ever) == [0.5, 1, 2, 4, None]


def test_each_quarantine_is_twice_as_long_up_to_a_bound() -> None:
    found = [one for one in lives(*[0] * 35) if one is not None and one > 30]
    assert found == [600, 1200, 2400, 4800, 9600, 19200, 21600]


def test_health_ends_the_doubling() -> None:
    delays = lives(*[0] * 10, 400, *[0] * 4)
    assert [one for one in delays if one is not None and one > 30] == [600, 1200, 600]


def test_a_drain_by_hand_is_no_death() -> None:
    history = RunHistory()
    for now in range(20):
        verdict = judge(history, now=now, ready_s=0.5, exit_code=0, policy=POLICY)
        history = verdict.history
        assert verdict.delay_s == POLICY.first_delay_s
    assert not history.deaths
    at_once = judge(RunHistory(), now=0, ready_s=0, exit_code=0, policy=POLICY)
    assert len(at_once.history.deaths) == 1, "it never was ready: nobody drained it"


def test_delay_is_bounded() -> None:
    patient = RestartPolicy(max_deaths=100)
    assert lives(*[0] * 9, policy=patient)[-3:] == [30, 30, 30]


def test_a_minute_of_health_starts_over() -> None:
    assert lives(0, 0, 61, 0) == [0.5, 1, 0.5, 1]


def test_deaths_that_are_far_apart_are_forgiven() -> None:
    assert None not in lives(*[80] * 20)


def test_configuration_is_quarantine_at_once() -> None:
    verdict = judge(RunHistory(), now=0, ready_s=0, exit_code=EXIT_CONFIG, policy=POLICY)
    assert verdict.delay_s is None


def test_a_configuration_that_has_worked_is_tried_again_for_as_long_as_it_takes() -> None:
    """Found on a GPU whose memory another program took: the pool ended with 78."""
    policy = RestartPolicy(retries_configuration=True)
    verdict = judge(RunHistory(), now=9, ready_s=9, exit_code=EXIT_CONFIG, policy=policy)
    delays, now = [verdict.delay_s], 9.0
    for _ in range(20):
        now += verdict.delay_s or 0.0
        verdict = judge(verdict.history, now=now, ready_s=0, exit_code=EXIT_CONFIG, policy=policy)
        assert not verdict.is_quarantine
        delays.append(verdict.delay_s)
    assert delays == [0.5, 1, 2, 4, 8, 16] + [30] * 15
    # A crash after it counts as the first: what was lacking is no reason for quarantine.
    crash = judge(verdict.history, now=now, ready_s=1, exit_code=1, policy=policy)
    assert not crash.is_quarantine


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 1000)), max_size=40))
def test_delays_stay_in_bounds_and_quarantine_is_earned(steps: list[tuple[float, float]]) -> None:
    history, now, deaths = RunHistory(), 0.0, []
    for gap_s, ready_s in steps:
        now += gap_s + ready_s
        deaths.append(now)
        verdict = judge(history, now=now, ready_s=ready_s, exit_code=-11, policy=POLICY)
        recent = [at for at in deaths if now - at < WINDOW_S]
        assert verdict.is_quarantine == (len(recent) >= POLICY.max_deaths)
        if verdict.is_quarantine:
            break
        assert verdict.delay_s is not None
        assert POLICY.first_delay_s <= verdict.delay_s <= MAX_DELAY_S
        history = verdict.history
        now += verdict.delay_s


def test_an_abort_is_explained_by_what_the_library_said_before() -> None:
    said = (
        b"odd.py:3: UserWarning: no\n/build/src/llama-model.cpp:1328: GGML_ASSERT(n > 0) failed\n"
        b'Fatal Python error: Aborted\n  File "backend.py", line 108 in decode\n'
    )
    words = abort_reason(said)
    assert explain(-6, words) == "aborted: llama-model.cpp:1328: GGML_ASSERT(n > 0) failed"
    assert explain(-9, words) == explain(-9)
    assert abort_reason(b"odd.py:3: UserWarning: no\nFatal Python error: Aborted\n") == ""
    assert abort_reason(b"x.cpp:1: \x1b[2J forged\n") == ""
    assert explain(-6) == "aborted"


def test_causes_tell_what_to_do() -> None:
    assert "GGML_NATIVE=OFF" in explain(-4)
    assert "out of memory" in explain(-9)
    assert explain(-15) == "killed by SIGTERM"
    assert explain(-999) == "killed by signal 999"
    assert explain(3) == "exit code 3"
    assert explain(0) == "ended by itself with exit code 0"
