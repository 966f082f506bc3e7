"""When a dead process starts again: back-off and quarantine, as a pure function of its history."""

from dataclasses import dataclass

EXIT_ERROR = 1
EXIT_NO_WORKER = 69
EXIT_RESTART = 75
EXIT_CONFIG = 78
"""Exit codes of sysexits.h; a restart does not mend `EXIT_CONFIG`, unless it worked before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How patient we are."""

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    healthy_after_s: float = 60.0
    """A process that was ready this long starts again at `first_delay_s`."""
    max_deaths: int = 5
    window_s: float = 300.0
    """`max_deaths` within this time is quarantine."""


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered of a process between its lives."""

    deaths: tuple[float, ...] = ()
    """Times of its deaths within the window, oldest first."""
    delay_s: float = 0.0
    """The delay before its present life; 0 if it never died."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens after a death; a `delay_s` of None is quarantine."""

    history: History
    delay_s: float | None


def judge(
    history: History, *, now: float, ready_s: float, exit_code: int, policy: Policy
) -> Verdict:
    """Decide on a process that died at `now` after having been ready for `ready_s`."""
    deaths = (*(at for at in history.deaths if now - at < policy.window_s), now)
    # A worker that was ready could not load its model again after sleeping: memory may be short.
    is_hopeless = exit_code == EXIT_CONFIG and not ready_s
    if is_hopeless or len(deaths) >= policy.max_deaths:
        return Verdict(History(deaths, history.delay_s), None)
    delay = policy.first_delay_s
    if history.delay_s > 0 and ready_s < policy.healthy_after_s:
        delay = min(history.delay_s * 2, policy.max_delay_s)
    return Verdict(History(deaths, delay), delay)
