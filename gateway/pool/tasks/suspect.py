"""Requests that are suspected of killing workers, by fingerprints of what they ask for."""

from dataclasses import dataclass, replace
from hashlib import blake2b

from protocol.wire import codec
from protocol.wire.messages import ClientTask, Envelope, Generate, TaskKey, TaskMessage
from protocol.wire.sampling import UNSET_SEED

_BYTES = 12
"""Length of a fingerprint."""


class Fingerprint:
    """What a request asks for: its prompt and its parameters, hashed when it is first needed.

    The seed, the slot and the form of the answer are left out: they do not make a request harmful,
    and a client that sends it again may change them.
    """

    __slots__ = ("_digest", "_request")

    def __init__(self, request: TaskMessage) -> None:
        self._request = request
        self._digest = b""

    @property
    def digest(self) -> bytes:
        """The hash."""
        if not self._digest:
            data = codec.encode(0, [Envelope(TaskKey(0), _plain(self._request))])
            self._digest = blake2b(data, digest_size=_BYTES).digest()
        return self._digest


def _plain(request: TaskMessage) -> TaskMessage:
    if isinstance(request, ClientTask):
        request = replace(request, request_id="")
    if not isinstance(request, Generate):
        return request
    params = replace(
        request.params, seed=UNSET_SEED, id_slot=-1, stream=False, timings_per_token=False
    )
    return replace(request, params=params, partial_answer=None, salt="", tenant="")


@dataclass(slots=True, eq=False)
class Suspect:
    """One fingerprint that was on a worker when that died."""

    fingerprint: bytes
    since: float
    """When the first of the workers died."""
    seen_at: float
    """When the latest of them died."""
    n_deaths: int = 0
    """Deaths at the same place of the answer; 0 once it has gone beyond."""
    n_tokens: int = 0
    """Length of the longest answer that one of them cut: the place that it must go beyond."""
    held_until: float = 0.0
    """Until when its tasks wait, in case other workers die of something else; 0 is not at all."""
    refused_until: float = 0.0
    """Until when it is refused; 0 is not at all."""
    n_refused: int = 0
    """Requests that were refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineView:
    """A fingerprint that is refused, for operators."""

    fingerprint: str
    """Hexadecimal."""
    n_deaths: int
    age_s: float
    """Seconds since the first death."""
    left_s: float
    """Seconds until it is let in again."""
    n_refused: int
