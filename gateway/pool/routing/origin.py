"""Origin of a task: whose request it belongs to, how soon it is needed, and its session.

The HTTP side reads it from requests (`gateway/http/origin/request_origin.py`). A session is a hint
that requests share a prompt. It changes no answer.
"""

import hashlib
import math
import time
from dataclasses import dataclass, field

from gateway.keys.api_key import NO_LIMITS, KeyLimits
from gateway.pool.requests.record import RequestRecord
from gateway.pool.routing.prompt_length import guess_tokens
from gateway.pool.tasks.block_hashes import Prefix, fingerprint
from gateway.pool.tasks.trace import TaskTrace
from protocol.wire.messages import Generate


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgency:
    """How soon a client needs its answer, in seconds from the request; infinity is no limit."""

    priority: int = 0
    """The lower the sooner, among the requests of one tenant."""
    timeout_s: float = math.inf
    """For the whole answer."""
    ttft_s: float = math.inf
    """For the first token, as long as the request has no slot."""

    @property
    def start_s(self) -> float:
        """Return the time within which the first token must be there."""
        return min(self.ttft_s, self.timeout_s)


NO_HURRY = Urgency()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Tenant, cache namespace and session of a request."""

    tenant: str = ""
    key: str = ""
    """Name of the API key; empty without keys."""
    limits: KeyLimits = NO_LIMITS
    urgency: Urgency = NO_HURRY
    salt: str = ""
    """Namespace of the cache."""
    session: str = ""
    """The client's name for a conversation, from a header or a field."""
    trace: TaskTrace | None = None
    label: str = ""
    """The client's user, a weaker hint of the same kind."""
    record: RequestRecord | None = field(default=None, compare=False)
    """The request, which pays for the tasks."""
    _prompts: dict[tuple[int, int], tuple[Prefix, int]] = field(default_factory=dict, compare=False)

    @property
    def spent_s(self) -> float:
        """Return the seconds since the request came: loading its model and images counts."""
        return time.monotonic() - self.record.arrived_at if self.record is not None else 0.0

    @property
    def start_within_s(self) -> float:
        """Return the time that is left for the first token."""
        return round(max(0.0, self.urgency.start_s - self.spent_s), 3)

    @property
    def hidden_tenant(self) -> str:
        """Return the tenant's name for the workers, which need not know it."""
        if not self.tenant:
            return ""
        return hashlib.sha256(self.tenant.encode("utf-8", "replace")).hexdigest()[:16]

    def prompt(self, task: Generate, model: str) -> tuple[Prefix, int]:
        """Hash the blocks of a prompt and guess its tokens, once for all choices of the request."""
        key = (id(task.chat), id(task.prompt) if task.infill is None else id(task.infill))
        found = self._prompts.get(key)
        if found is None:
            found = self._prompts[key] = fingerprint(task, model), guess_tokens(task)
        return found

    def session_key(self, model: str) -> int:
        """Return the hash of the session within the pool; 0 for none."""
        return hash((model, self.salt, "session", self.session)) if self.session else 0

    def label_key(self, model: str) -> int:
        """Return the hash of the user within the pool; 0 for none."""
        return hash((model, self.salt, "label", self.label)) if self.label else 0
