"""Whether to wait for what comes next where a task has just ended. Pure.

A client that works off a list sends its next request once it has the answer. The engine would begin
a step of the other slots just before that: deceptive idleness (Iyer and Druschel, Anticipatory
scheduling, SOSP 2001). Where computing takes every core, the way of the answer out and of the next
prompt in costs that step as much time as a short wait would, for all its threads wait at each
barrier for the one that had to make way: on 2 cores 8 ms of a step of 18. And the step is a small
one. After the wait cores are free for the way, and the next step has a row of every slot.

Clients that pause, or that are far away, send nothing in that time. So it is learnt whether the
next one comes, and a wait never takes longer than the step that it holds up.
"""

from dataclasses import dataclass

LONGEST_S = 0.012
"""The way of several answers out and of their successors in takes 5 to 9 ms on 2 cores."""
ENOUGH = 0.5
_BEGIN = 0.25
_SEEN, _MISSED, _WAITED = 0.05, 0.1, 0.2
"""How much of what was learnt before one more step replaces: one that computed while the next task
came or did not come, or one that waited, which is the surest sign."""


@dataclass(slots=True)
class ArrivalPredictor:
    """Learns whether tasks follow those that end, and how long to wait for them."""

    is_on: bool
    trust: float = _BEGIN
    """How many of the tasks that ended were followed by another at once: a moving average."""
    n_missing: int = 0
    """Tasks that ended in the last step and that none has followed yet."""
    _n_behind: int = 0
    """The same for the step before: nobody waited for their successors."""

    def ended(self, n: int) -> None:
        """Say how many tasks ended in a step."""
        self._n_behind, self.n_missing = self.n_missing, n

    def came(self, n: int) -> None:
        """Say how many tasks came while that step was computed, and since."""
        if self._n_behind:
            share = min(n, self._n_behind) / self._n_behind
            self._learn(share, _SEEN if share else _MISSED)
        self.n_missing = max(0, self.n_missing - max(0, n - self._n_behind))
        self._n_behind = 0

    def rest(self) -> None:
        """Say that nothing runs: there is no step that could wait, and none to learn from."""
        self.n_missing = self._n_behind = 0

    def wait_s(self, step_s: float) -> float:
        """Return how long to wait before a step that will take `step_s`; 0 is not at all."""
        is_worth_it = self.is_on and self.n_missing and self.trust >= ENOUGH
        return min(step_s, LONGEST_S) if is_worth_it else 0.0

    def waited(self, n_came: int) -> None:
        """Learn from a wait in which `n_came` tasks came."""
        self._learn(min(n_came, self.n_missing) / self.n_missing, _WAITED)
        self.n_missing = 0

    def _learn(self, share: float, weight: float) -> None:
        self.trust += weight * (share - self.trust)
