"""Decides when a dead process starts again: back-off and quarantine. Pure.

The end of a process with code 0, after it was told to leave, is no death; it starts again.
"""

from dataclasses import dataclass, replace

from protocol.errors import EXIT_CONFIG, EXIT_OK

MAX_DELAY_S = 30.0
"""Longest wait before a restart, in seconds; each death in a row doubles the wait."""
_HEALTHY_AFTER_S = 60.0
"""After being ready for this many seconds, a process restarts with `first_delay_s` again."""
WINDOW_S = 300.0
"""`max_deaths` within this many seconds lead to quarantine."""
_MAX_QUARANTINE_S = 6 * 3600.0
"""Longest quarantine, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """What differs between kinds of processes."""

    first_delay_s: float = 0.5
    max_deaths: int = 5
    quarantine_s: float | None = 600.0
    """Duration of the first quarantine; each further one is twice as long. None: it is given up."""
    retries_configuration: bool = False
    """Whether a process that says that it cannot work as configured is tried again, at most every
    `MAX_DELAY_S`: it has worked so, and the machine lacks something for a time, such as memory that
    another program took or a file that is being replaced."""


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The earlier runs of a process."""

    deaths: tuple[float, ...] = ()
    """Times of its deaths within the window, oldest first."""
    delay_s: float = 0.0
    """Delay before its current run; 0 if it never died."""
    n_quarantines: int = 0
    """Number of quarantines since it was last healthy."""


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """Decision after a death; the process is given up if `delay_s` is None."""

    history: RunHistory
    delay_s: float | None
    is_quarantine: bool = False


def judge(
    history: RunHistory, *, now: float, ready_s: float, exit_code: int, policy: RestartPolicy
) -> RestartDecision:
    """Decide on a process that died at `now` after having been ready for `ready_s`."""
    history = replace(
        history,
        deaths=tuple(at for at in history.deaths if now - at < WINDOW_S),
        n_quarantines=0 if ready_s >= WINDOW_S else history.n_quarantines,
    )
    if exit_code == EXIT_OK and ready_s:
        return RestartDecision(history, policy.first_delay_s)
    after = replace(history, deaths=(*history.deaths, now))
    is_config = exit_code == EXIT_CONFIG
    if is_config and not policy.retries_configuration:
        return RestartDecision(after, None)
    if len(after.deaths) >= policy.max_deaths and not is_config:
        if policy.quarantine_s is None:
            return RestartDecision(after, None)
        n = history.n_quarantines
        delay = min(policy.quarantine_s * 2**n, _MAX_QUARANTINE_S)
        after = replace(after, deaths=(), delay_s=0.0, n_quarantines=n + 1)
        return RestartDecision(after, delay, is_quarantine=True)
    delay = policy.first_delay_s
    if history.delay_s > 0 and ready_s < _HEALTHY_AFTER_S:
        delay = min(history.delay_s * 2, MAX_DELAY_S)
    # Quarantine would outlast by far what the machine lacks for a time: that counts as no death.
    return RestartDecision(replace(history if is_config else after, delay_s=delay), delay)
