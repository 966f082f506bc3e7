"""One HTTP request: who asked, what for, and the tasks that it made. Pure."""

import time
from typing import Any

from gateway.pool.tasks.task import Task, TaskState
from gateway.usage.entry import Tokens, UsageEntry

REQUEST = "llamapool.request"
"""Where a scope has the record of its request."""

_PATH = 200
"""Characters of a path that are kept."""


class RequestRecord:
    """Written by the access layer (head and end) and by the pool (tasks)."""

    def __init__(self, number: int, request_id: str, method: str, path: str, now: float) -> None:
        self.number = number
        """Grows with every request of this gateway."""
        self.request_id = request_id
        self.method = method
        self.path = path[:_PATH]
        self.arrived_at = now
        self.tasks: list[Task] = []
        self.n_unsettled = 0
        """Number of tasks whose cost a worker may still report."""
        self.key = self.tenant = self.model = self.client = ""
        self.status = 0
        self.cause = ""
        """What its client was told when it failed; empty if it did not."""
        self.duration_s = 0.0
        self.is_over = False
        """Whether its answer has ended, or its client has left."""
        self.is_quiet = False
        """Whether it is logged at debug level only."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will be known of it."""
        return self.is_over and not self.n_unsettled

    @property
    def finish(self) -> str:
        """How its tasks ended; of several the first that did not end well, or the first."""
        ends = [task.finish for task in self.tasks if task.finish]
        bad = [end for end in ends if end not in _WELL]
        return next(iter(bad or ends), "")

    def usage(self) -> UsageEntry:
        """Return what it has cost, by what is known now."""
        return UsageEntry(
            time=time.time(),
            request_id=self.request_id,
            key=self.key,
            tenant=self.tenant if self.key else "",  # without keys it is an address
            model=self.model,
            path=self.path,
            status=self.status,
            finish=self.finish,
            tokens=cost_of(self.tasks),
        )


_WELL = frozenset({"eos", "word", "limit", "none", "ok"})


def cost_of(tasks: list[Task]) -> Tokens:
    """Add up what the tasks of one request have cost. Choices of one prompt pay it once."""
    total = Tokens(requests=1)
    prompts: set[int] = set()
    for task in tasks:
        prompt = id(task.spec.prefix) if task.spec.takes_credit else task.task_id
        total = total.plus(_cost(task, pays_prompt=prompt not in prompts))
        prompts.add(prompt)
    return total


def _cost(task: Task, *, pays_prompt: bool) -> Tokens:
    if not task.attempts:
        return Tokens()
    last = task.attempts[-1]
    n_prompt, n_cached = _prompt_of(task) if pays_prompt else (0, 0)
    return Tokens(
        prompt=n_prompt,
        cached=n_cached,
        completion=last.n_before + last.n_predicted,
        read=sum(attempt.n_read for attempt in task.attempts),
        reused=sum(attempt.n_reused for attempt in task.attempts),
        generated=sum(attempt.n_predicted for attempt in task.attempts),
    )


def _prompt_of(task: Task) -> tuple[int, int]:
    """Return the tokens of a prompt that are paid for, and those of them that were cached."""
    last = task.attempts[-1]
    n_seen = max(attempt.n_read + attempt.n_reused for attempt in task.attempts)
    is_read = any(attempt.n_predicted or attempt.n_before for attempt in task.attempts)
    if last.is_reported:
        n_prompt, n_cached = last.n_prompt, last.n_cached
    else:
        n_prompt, n_cached = task.answer.n_prompt or last.n_prompt, task.answer.n_cached
    if not is_read:  # it was given up before, or generates nothing
        n_prompt = min(n_prompt or n_seen, n_seen)
        n_cached = min(n_cached, max(attempt.n_reused for attempt in task.attempts))
    return n_prompt, min(n_cached, n_prompt)


def state_of(task: Task) -> str:
    """Tell where a task is, in words for people."""
    if task.state is TaskState.STARTED:
        return "generating" if task.answer.last_at else "reading"
    return {
        TaskState.WAITING: "queued",
        TaskState.ASSIGNED: "sent",
        TaskState.CANCELLED: "cancelling",
        TaskState.ENDED: "ended",
    }[task.state]


def summary(record: RequestRecord) -> dict[str, Any]:
    """Return the fields of a request's log line, and of its row for admins; empty ones are None."""
    tasks, cost = record.tasks, cost_of(record.tasks)
    sent = [task for task in tasks if task.attempts]
    first = sent[0] if sent else None
    workers = dict.fromkeys(task.worker_name for task in sent)
    routes = dict.fromkeys(task.attempts[-1].route for task in sent)
    return {
        "request_id": record.request_id,
        "key": record.key or None,
        "method": record.method,
        "path": record.path,
        "status": record.status or None,
        "duration_s": record.duration_s if record.is_over else None,
        "client": record.client or None,
        "model": record.model or None,
        "worker": ", ".join(workers) or None,
        "route": ", ".join(filter(None, routes)) or None,
        "task": tasks[0].task_id if tasks else None,
        "n_tasks": len(tasks) if len(tasks) > 1 else None,
        "n_prompt": cost.prompt if sent else None,
        "n_cached": cost.cached if sent else None,
        "n_predicted": cost.completion if sent else None,
        "n_continued": sum(len(task.attempts) - 1 for task in sent) or None,
        "queue_s": first.attempts[0].assigned_at - first.submitted_at if first else None,
        "slot_s": first.attempts[0].slot_s if first else None,
        "ttft_s": first.ttft_s or None if first else None,
        "itl_s": first.answer.itl_s or None if first else None,
        "finish": record.finish or None,
        "cause": record.cause or None,
    }
