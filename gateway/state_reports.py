"""Reports to the supervisor or systemd: that the loop runs, and how many requests there are.

The supervisor adds up the counts of its gateways; systemd shows the sentence in
`systemctl status`.
"""

import asyncio

from gateway.pool.pool import Pool
from protocol.process.notify import Notifier

REPORT_S = 1.0
"""Time between two looks at the pool; only what has changed is sent."""


async def send_late(notifier: Notifier) -> None:
    """Send the reports for which the receiver's socket had no room; return at once without one."""
    while notifier.is_heard:
        await asyncio.sleep(REPORT_S)
        notifier.flush()


async def notify_watchdog(notifier: Notifier) -> None:
    """Send heartbeats while the loop runs; return at once if no watchdog is configured."""
    if notifier.watchdog_interval_s is None:
        return
    while True:
        notifier.watchdog()
        await asyncio.sleep(notifier.watchdog_interval_s)


async def report(pool: Pool, notifier: Notifier) -> None:
    """Report changes of the numbers of workers and tasks; return at once without a receiver."""
    told: dict[str, object] = {}
    while notifier.is_heard:
        if (state := state_of(pool)) != told:
            told = state
            notifier.send(**state)
        await asyncio.sleep(REPORT_S)


def state_of(pool: Pool) -> dict[str, object]:
    """Return the fields that say what the pool does."""
    health, (n_running, n_waiting) = pool.health(), pool.status.in_hand()
    phase = "draining" if health.status == "draining" else "serving"
    text = f"{health.n_workers} workers ready, {n_running} requests running, {n_waiting} waiting"
    return {"STATUS": f"{phase}, {text}", "X_RUNNING": n_running, "X_WAITING": n_waiting}
