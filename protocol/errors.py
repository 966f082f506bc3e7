"""The ways in which a task can fail, independent of HTTP.

The gateway owns the table from `ErrorCode` to status and body (`gateway/http/errors.py`); the
worker only reports the code.
"""

from collections.abc import Mapping
from enum import StrEnum

# Exit codes of all processes, from 69 on those of sysexits.h.
EXIT_OK = 0
EXIT_ERROR = 1
EXIT_UNAVAILABLE = 69
"""No worker can start, or no pool answers."""
EXIT_RESTART = 75
"""The engine is stuck: a new process may work."""
EXIT_CONFIG = 78
"""A `ConfigError`: a restart helps only a process that worked before."""


class ErrorCode(StrEnum):
    """Why a task has no result; the value is what travels on the wire."""

    INVALID_REQUEST = "invalid_request"
    """The client must change the request."""
    CONTEXT_EXCEEDED = "context_exceeded"
    """The prompt does not fit; `detail` holds `n_prompt_tokens` and `n_ctx`."""
    TOO_LARGE = "too_large"
    """The request, or its answer, does not fit into one message between two processes."""
    NOT_FOUND = "not_found"
    """The model or the path does not exist."""
    NOT_SUPPORTED = "not_supported"
    """This server was started without what the request needs."""
    OVERLOADED = "overloaded"
    """The queue is full, or the task waited too long in it."""
    RATE_LIMITED = "rate_limited"
    """The key has used what it may use in a minute."""
    QUOTA_EXCEEDED = "quota_exceeded"
    """The key has used what it may use in a day, or could never do this."""
    DEADLINE = "deadline"
    """The time that the client gave is over, and the answer had started."""
    UNAVAILABLE = "unavailable"
    """No worker can take it now: loading, draining, or lost."""
    LOST = "lost"
    """The worker died while it answered; the same request may kill the next one too."""
    QUARANTINED = "quarantined"
    """Workers have died with this very request: it is not given to another one."""
    INTERNAL = "internal"
    """An unexpected error in the server; the same request would probably fail again."""


class TaskError(Exception):
    """A failed task: raised anywhere, converted to a message or an HTTP body at the boundary."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        detail: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.detail = dict(detail or {})


class InvalidRequest(TaskError):
    """The request is wrong; `param` names the field as the client spelled it."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message, param=param)


class NotStored(TaskError):
    """The request goes on with a conversation of which nothing is kept here."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(ErrorCode.NOT_FOUND, message, param=param)


def loading() -> TaskError:
    """Return the error of a request for a model that no worker has ready yet."""
    return TaskError(ErrorCode.UNAVAILABLE, "Loading model")


def shutting_down() -> TaskError:
    """Return the error of a request to a server that is being stopped."""
    return TaskError(ErrorCode.UNAVAILABLE, "The server is shutting down")


def not_started(what: str, options: str) -> TaskError:
    """Return llama-server's error of a request for what an option turns on."""
    message = f"This server does not support {what}. Start it with {options}"
    return TaskError(ErrorCode.NOT_SUPPORTED, message)


class ConfigError(Exception):
    """A configuration that cannot work; the message has the key or file and what to do."""
