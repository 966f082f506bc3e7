"""Log lines about the supervisor's children: their deaths, and their standard errors."""

import logging

from worker.supervisor.children.exit_reasons import abort_reason
from worker.supervisor.children.managed_child import ManagedChild
from worker.supervisor.children.restart_policy import RestartDecision
from worker.supervisor.children.watch import ChildWatch

logger = logging.getLogger("supervisor")


def log_death(watch: ChildWatch, verdict: RestartDecision) -> None:
    """Log why a child has died, and when it starts again."""
    child, retry_s = watch.child, verdict.delay_s
    if watch.was_drained and retry_s is not None and not verdict.is_quarantine:
        logger.info("process drained", extra={"child": child.launch.name, "retry_s": retry_s})
        return
    facts = {
        "child": child.launch.name,
        "cause": "stuck: no progress" if watch.is_killed else watch.cause(),
        "retry_s": retry_s,
        "pid": child.last_pid,
    }
    if retry_s is None:
        n_deaths = len(watch.history.deaths)
        action = "it is not started again"
        logger.error("process given up", extra={**facts, "n_deaths": n_deaths, "action": action})
    elif verdict.is_quarantine:
        logger.error(
            "process quarantined",
            extra={
                **facts,
                "action": "it is started again after that time",
                "hint": "remove the cause; `llamapool undrain` then starts a worker at once",
            },
        )
    else:
        logger.error("process died", extra={**facts, "action": "it is started again"})


def log_stderr(child: ManagedChild, data: bytes) -> None:
    """Log each line that a child printed to standard error: messages of a library, or a stack."""
    child.abort_reason = abort_reason(data) or child.abort_reason
    for line in data.decode(errors="replace").split("\n"):
        if line.strip():
            logger.warning("standard error", extra={"child": child.launch.name, "line": line})
