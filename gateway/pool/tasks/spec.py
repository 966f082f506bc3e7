"""What a request asks of the pool for one task."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from gateway.keys.api_key import NO_LIMITS, KeyLimits
from gateway.pool.tasks.block_hashes import Prefix
from gateway.pool.tasks.suspect import Fingerprint
from gateway.pool.tasks.trace import TaskTrace


class Together(NamedTuple):
    """The tasks of one request, which are refused together."""

    n_tasks: int = 1
    n_tokens: int = 0
    """Guessed length of all their prompts; it does not count where there is one task."""


ALONE = Together()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One task as it was submitted; it does not change."""

    task_id: int
    """Grows with every submission."""
    model: str
    tenant: str = ""
    key: str = ""
    """Name of the API key; empty without keys, and for tasks of the gateway's own."""
    limits: KeyLimits = NO_LIMITS
    start_within_s: float = math.inf
    """Time for the first token: what cannot be there in time is refused at once."""
    priority: int = 0
    """Order among the tenant's own tasks, the lower the sooner."""
    n_tokens: int = 1
    """Guessed length of the prompt, until a worker has counted it."""
    together: Together = ALONE
    """The tasks of its request, itself included."""
    n_answer: int | None = 0
    """Maximum tokens of its answer; None if the request names no maximum."""
    has_media: bool = False
    """Whether its prompt has images or sounds: how long those take is not predicted."""
    takes_credit: bool = True
    """Whether it needs a slot."""
    worker: str = ""
    """Name of the only worker that may run it; empty for any."""
    slot: int = -1
    """That worker's own slot number; -1 for any."""
    prefix: Prefix = Prefix()
    session: int = 0
    """Hash of the session that the request names, whose requests share a prompt; 0 is none."""
    label: int = 0
    """Hash of the user that the request names, a weaker hint of the same kind; 0 is none."""
    is_whole: bool = False
    """Whether the client sees nothing of the answer before all of it is there."""
    is_bound: bool = False
    """Whether it acts on what its worker holds now, so that no other worker can take it over."""
    continues: bool = True
    """Whether another worker may continue an answer that has started."""
    trace: TaskTrace | None = None
    """The trace of its request; None while traces are off."""
    fingerprint: Fingerprint | None = None
    """Tells whether two requests ask for the same; None if that is of no interest."""

    @property
    def is_slotless(self) -> bool:
        """Whether any worker may run it, without a slot."""
        return not (self.takes_credit or self.worker)

    @property
    def is_special(self) -> bool:
        """Whether it can go without a free credit, or to one worker only."""
        return bool(self.worker) or not self.takes_credit
