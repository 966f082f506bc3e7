"""Log lines about the supervisor's children: their deaths, and their standard errors."""

import logging

from worker.supervisor.children.exit_reasons import abort_reason
from worker.supervisor.children.managed_child import ManagedChild
from worker.supervisor.children.restart_policy import RestartDecision
from worker.supervisor.children.watch import ChildWatch

logger = logging.getLogger("supervisor")


def log_death(watch: ChildWatch, verdict: RestartDecision) -> None:
    """Log why a child has died, and when it starts again."""
    child = watch.child.launch.name
    cause = "stuck: no progress" if watch.is_killed else watch.cause()
    retry_s = verdict.delay_s
    if retry_s is None:
        n_deaths = len(watch.history.deaths)
        logger.error(
            "process given up",
            extra={
                "child": child,
                "cause": cause,
                "n_deaths": n_deaths,
                "action": "it is not started again",
            },
        )
    elif verdict.is_quarantine:
        logger.error(
            "process quarantined",
            extra={
                "child": child,
                "cause": cause,
                "retry_s": retry_s,
                "action": "it is started again after that time",
                "hint": "remove the cause: it died again and again",
            },
        )
    elif watch.was_drained:
        logger.info("process drained", extra={"child": child, "retry_s": retry_s})
    else:
        logger.error(
            "process died",
            extra={
                "child": child,
                "cause": cause,
                "retry_s": retry_s,
                "action": "it is started again",
            },
        )


def log_stderr(child: ManagedChild, data: bytes) -> None:
    """Log each line that a child printed to standard error: messages of a library, or a stack."""
    child.abort_reason = abort_reason(data) or child.abort_reason
    for line in data.decode(errors="replace").split("\n"):
        if line.strip():
            logger.warning("standard error", extra={"child": child.launch.name, "line": line})
