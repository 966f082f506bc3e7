"""Threads for what takes long before a task can run: rendering, tokenizing, media, grammars.

The link's thread gives out jobs and collects their outcomes; it alone changes the lists of jobs, so
they need no lock. A job that takes longer than its limit fails at once, and its thread is told to
end: Python code does so within microseconds, a call into C when it returns. Another thread takes
its place meanwhile.
"""

import ctypes
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from protocol.wire.messages import TaskKey

T = TypeVar("T")

_N_THREADS = 2
"""Large jobs occupy all but one of them, so that a small one never waits for a large one."""


class Overrun(BaseException):
    """Raised inside a job at its time limit; code of a template cannot catch it."""


@dataclass(slots=True, eq=False)
class PreparationJob:
    """One piece of work for a thread."""

    label: str
    """Name for the log, with the task's id."""
    work: Callable[[], object]
    limit_s: float
    is_large: bool = False
    is_alone: bool = False
    """It runs alone: after all earlier jobs have ended, and before any later one begins."""
    connection: int = 0
    """The gateway that it comes from: gateways take turns."""
    keys: Sequence[TaskKey] = ()
    """Its tasks."""
    outcome: object = None
    """What `work` returned, or the exception that it ended with."""
    started_s: float = 0.0

    def run(self) -> object:
        """Do the work; whatever it raises is its outcome."""
        try:
            return self.work()
        except BaseException as error:
            return error


Result = tuple["PreparationThread", PreparationJob, object]


class PreparationThread:
    """One thread, and the job that it was given last."""

    _numbers = itertools.count(1)

    def __init__(self, results: "queue.SimpleQueue[Result]", wake: Callable[[], None]) -> None:
        self._inbox: queue.SimpleQueue[PreparationJob | None] = queue.SimpleQueue()
        self._results = results
        self._wake = wake
        name = f"prepare-{next(self._numbers)}"
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def give(self, job: PreparationJob) -> None:
        """Let it do a job."""
        job.started_s = time.monotonic()
        self._inbox.put(job)

    def stop_when_done(self) -> None:
        """Let the thread end once it has done what it was given."""
        self._inbox.put(None)

    def interrupt(self) -> None:
        """Raise `Overrun` in the thread, as soon as it runs Python code again."""
        ident = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Overrun))

    @property
    def is_alive(self) -> bool:
        """The thread has not ended."""
        return self._thread.is_alive()

    def _live(self) -> None:
        try:
            while (job := self._inbox.get()) is not None:
                self._results.put((self, job, job.run()))
                del job  # it refers to the model, which may be freed while the thread waits
                self._wake()
        except Overrun:  # it came when the job had just ended
            return


def within(limit_s: float, work: Callable[[], T]) -> T:
    """Return what `work` returns on a thread of its own; raises `Overrun` after the limit."""
    outcomes: queue.SimpleQueue[Result] = queue.SimpleQueue()
    done: list[T] = []
    thread = PreparationThread(outcomes, lambda: None)
    thread.give(PreparationJob("opening", lambda: done.append(work()), limit_s))
    thread.stop_when_done()
    try:
        _, _, outcome = outcomes.get(timeout=limit_s)
    except queue.Empty:
        thread.interrupt()
        raise Overrun from None
    if isinstance(outcome, BaseException):
        raise outcome
    return done[0]


class Preparation:
    """Hands jobs to threads, in their order by gateway; belongs to the link's thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called on another thread when `take` has something to return."""
        self._wake = wake
        self._waiting: dict[int, deque[PreparationJob]] = {}
        """By connection, the one whose turn is next first; none is empty."""
        self._running: dict[PreparationThread, PreparationJob] = {}
        self._idle: list[PreparationThread] = []
        self._given_up: dict[PreparationThread, PreparationJob] = {}
        """Threads whose jobs have been given up, and that have not ended yet."""
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()

    def __bool__(self) -> bool:
        """Whether a thread may use the model now or soon."""
        return bool(self._waiting or self._running or self._given_up)

    def submit(self, job: PreparationJob) -> None:
        """Let a job be done as soon as a thread is free."""
        self._waiting.setdefault(job.connection, deque()).append(job)
        self._hand_out()

    def discard(self, job: PreparationJob) -> None:
        """Drop a job that has not started; a running one goes on to its end or its time limit."""
        if job in self._waiting.get(job.connection, ()):
            self._remove(job)
            self._hand_out()

    def drop(self, connection: int) -> Collection[PreparationJob]:
        """Drop the jobs of a gateway that have not started, and return them."""
        dropped = self._waiting.pop(connection, ())
        if dropped:
            self._hand_out()
        return dropped

    @property
    def has_results(self) -> bool:
        """A job has ended."""
        return not self._results.empty()

    def take(self) -> list[PreparationJob]:
        """Return the jobs that have ended since the last time, and begin others."""
        ended: list[PreparationJob] = []
        while self.has_results:
            thread, job, outcome = self._results.get()
            job.outcome = outcome
            if self._running.pop(thread, None) is not None:
                self._idle.append(thread)
                ended.append(job)
            else:
                self._given_up.pop(thread, None)
        if ended:
            self._hand_out()
        return ended

    def overdue(self) -> list[PreparationJob]:
        """Give up the jobs that have reached their time limit, and return them."""
        now = time.monotonic()
        for thread in [thread for thread in self._given_up if not thread.is_alive]:
            del self._given_up[thread]
        for thread in self._given_up:
            thread.interrupt()
        found = {
            thread: job
            for thread, job in self._running.items()
            if now - job.started_s > job.limit_s
        }
        for thread, job in found.items():
            del self._running[thread]
            self._given_up[thread] = job
            job.outcome = Overrun()
            thread.stop_when_done()
            thread.interrupt()
        if found:
            self._hand_out()
        return list(found.values())

    def stuck(self, limit_s: float) -> PreparationJob | None:
        """Return a job that was given up this long ago and still holds its thread."""
        now = time.monotonic()
        for thread, job in self._given_up.items():
            if thread.is_alive and now - job.started_s > job.limit_s + limit_s:
                return job
        return None

    def close(self) -> None:
        """Let the threads end."""
        self._waiting.clear()
        for thread in (*self._idle, *self._running):
            thread.stop_when_done()
        self._idle.clear()

    # -------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        while len(self._running) < _N_THREADS and (job := self._next()) is not None:
            left = self._remove(job)
            if left:  # the others go first
                self._waiting[job.connection] = self._waiting.pop(job.connection)
            thread = (
                self._idle.pop() if self._idle else PreparationThread(self._results, self._wake)
            )
            self._running[thread] = job
            thread.give(job)

    def _remove(self, job: PreparationJob) -> int:
        """Take out a job that waits; return how many others of its gateway do."""
        jobs = self._waiting[job.connection]
        jobs.remove(job)
        if not jobs:
            del self._waiting[job.connection]
        return len(jobs)

    def _next(self) -> PreparationJob | None:
        """Return the job whose turn it is; a small one may pass large ones."""
        running = self._running.values()
        if any(job.is_alone for job in running):
            return None
        n_large = sum(job.is_large for job in running)
        for jobs in self._waiting.values():
            for job in jobs:
                if job.is_alone and job is not jobs[0]:
                    break
                if job.is_alone:
                    return None if running else job
                if not job.is_large or n_large < _N_THREADS - 1:
                    return job
        return None
