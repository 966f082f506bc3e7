"""Reads request bodies, bounded in size and time; their total size is bounded too.

The Content-Type of JSON is ignored: `curl -d` sends that of a form, browsers send text/plain, and
llama-server reads all of them as JSON.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from gateway.http.bodies.byte_budget import ByteBudget
from gateway.http.bodies.form import parse_form
from gateway.http.bodies.parsing import count_marks, parse_list, parse_object, parse_value
from gateway.http.errors import RequestRefused
from protocol.config.limits import LimitsConfig
from protocol.errors import ErrorCode, TaskError

MIB = 1024 * 1024

LARGE = 64 * 1024
"""Larger bodies are parsed in a thread. Each change of threads takes 65 us."""
MANY_VALUES = 5000
"""So are those with more values, a name counted as ten: to parse and read so many takes 3 ms."""
HELD = "held_body"
"""Key of the scope for the request's `BodyReservation`."""
_PIECE = 64 * 1024
"""Pieces of at least this many bytes are kept as they came; smaller ones are joined."""
_COMPRESSIONS = frozenset(("gzip", "x-gzip", "deflate", "compress", "br", "zstd"))
"""None is taken: a small body could become any size."""
_LINGER = 2
"""Bodies up to this many times the limit are read to the end: otherwise the client would see a
reset instead of the 413."""

_S_PER_MIB = 1.0
"""Additional seconds for each MiB of a body that has arrived."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Largest size of a body, and longest time for it, which grows with the bytes received."""

    max_bytes: int
    timeout_s: float = 30.0
    fields: LimitsConfig = LimitsConfig()


class ClientGone(Exception):
    """The client has closed the connection before the answer."""


class BodyBudget(ByteBudget):
    """The bytes of all request bodies, of which one large body is parsed at a time."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.parsing = asyncio.Lock()
        """Held while a large body is parsed. Each parser holds the interpreter lock for up to 0.4 s
        at a time; several at once would keep the loop from it for seconds."""


class BodyReservation:
    """Bytes of the budget that one request holds until it is answered."""

    __slots__ = ("_budget", "is_large", "n_bytes", "tenant")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.n_bytes = 0
        self.tenant = ""
        """Whose request it is; set before the first byte is held."""
        self.is_large = False
        """Whether work that grows with the body takes so long that a thread does it."""

    @property
    def parsing(self) -> asyncio.Lock:
        """Held while a large body is parsed: one at a time."""
        return self._budget.parsing

    def take(self, n: int) -> None:
        """Hold more bytes; raises `TaskError` if that exceeds the budget.

        A request that is alone always has room.
        """
        others = self._budget.n_bytes - self.n_bytes
        if others and not self._budget.fits(n, self.tenant):
            message = "The server holds too many request bodies at once: try again later"
            raise TaskError(ErrorCode.UNAVAILABLE, message)
        self.n_bytes += n
        self._budget.add(n, self.tenant)

    def release(self) -> None:
        """Give everything back; idempotent."""
        self._budget.add(-self.n_bytes, self.tenant)
        self.n_bytes = 0


async def read_json(scope: Scope, receive: Receive, limits: BodyLimits) -> dict[str, Any]:
    """Return the JSON object of a request; raises `RequestRefused`, `TaskError` or `ClientGone`."""
    return await _parsed(parse_object, scope, receive, limits)


async def read_list(scope: Scope, receive: Receive, limits: BodyLimits) -> list[Any]:
    """Return the JSON array of a request; raises like `read_json`."""
    return await _parsed(parse_list, scope, receive, limits)


async def read_value(scope: Scope, receive: Receive, limits: BodyLimits) -> Any:
    """Return the JSON of a request, whatever it is; raises like `read_json`."""
    return await _parsed(parse_value, scope, receive, limits)


def is_form(scope: Scope) -> bool:
    """Return whether a request says that its body is a form."""
    return Headers(scope=scope).get("content-type", "").lower().startswith("multipart/form-data")


async def read_form(scope: Scope, receive: Receive, limits: BodyLimits) -> dict[str, Any]:
    """Return the texts and files of a multipart/form-data request; raises like `read_json`."""
    content_type = Headers(scope=scope).get("content-type", "")
    return await _parsed(
        lambda data, _limits: parse_form(data, content_type), scope, receive, limits
    )


async def _parsed(
    parse: Callable[[bytes, LimitsConfig], T], scope: Scope, receive: Receive, limits: BodyLimits
) -> T:
    held = scope.get(HELD) or BodyReservation(BodyBudget(0))
    held.tenant = scope.get("tenant", "")
    chunks = await _whole(scope, receive, limits, held)
    if sum(map(len, chunks)) <= LARGE:
        data = b"".join(chunks)
        if count_marks(data) <= MANY_VALUES:
            return parse(data, limits.fields)
    held.is_large = True
    async with held.parsing:
        # Joining 64 MiB takes 30 ms, so it is done in the thread too.
        return await asyncio.to_thread(lambda: parse(b"".join(chunks), limits.fields))


async def in_thread(is_long: bool, work: Callable[..., T], *args: Any) -> T:
    """Run `work` in a thread if it takes long, so that the loop stays responsive."""
    return await asyncio.to_thread(work, *args) if is_long else work(*args)


async def _whole(
    scope: Scope, receive: Receive, limits: BodyLimits, held: BodyReservation
) -> list[bytes | bytearray]:
    too_large = RequestRefused(
        413, f"the request body is larger than {limits.max_bytes // MIB} MiB"
    )
    if is_far_too_large(scope, limits):
        raise too_large
    if coding := _compression(scope):
        message = f"Content-Encoding: {coding} is not supported: send the body uncompressed"
        raise RequestRefused(415, message)
    try:
        chunks = await _read(receive, limits, held)
    except TimeoutError as error:
        raise RequestRefused(408, "the request body did not arrive in time") from error
    if chunks is None:
        raise too_large
    return chunks


def _compression(scope: Scope) -> str:
    """Return the compression that the headers name; empty if it is none or unknown."""
    for name, value in scope["headers"]:
        if name == b"content-encoding":
            codings = (coding.strip().lower() for coding in value.decode("latin-1").split(","))
            return next((coding for coding in codings if coding in _COMPRESSIONS), "")
    return ""


def is_far_too_large(scope: Scope, limits: BodyLimits) -> bool:
    """Return whether a body declares a size beyond which it is not even read to its end."""
    declared = next(
        (
            int(value[:18])
            for name, value in scope["headers"]
            if name == b"content-length" and value.isdigit()
        ),
        0,
    )
    return declared > _LINGER * limits.max_bytes


async def skip(receive: Receive, limits: BodyLimits) -> None:
    """Read what is left of a body and drop it; gives up where it is too large or too slow."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with _BodyTimeout(limits) as timeout:
            while size <= _LINGER * limits.max_bytes:
                message = await receive()
                if not message.get("more_body", False):
                    return
                size += len(message.get("body", b""))
                timeout.extend(size)


def _append(chunks: list[bytes | bytearray], piece: bytes) -> None:
    """Add a piece; small pieces are joined, because each object takes fifty bytes more."""
    if len(piece) >= _PIECE:
        chunks.append(piece)
        return
    if not chunks or len(chunks[-1]) >= _PIECE:
        chunks.append(bytearray())
    chunks[-1] += piece


async def _read(
    receive: Receive, limits: BodyLimits, held: BodyReservation
) -> list[bytes | bytearray] | None:
    """Return the pieces of the body, or None if it was too large; the excess is dropped."""
    chunks: list[bytes | bytearray] = []
    size = 0
    async with _BodyTimeout(limits) as timeout:
        while size <= _LINGER * limits.max_bytes:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size += len(piece)
            if size > limits.max_bytes:
                chunks.clear()
                held.release()
            else:
                held.take(len(piece))
                _append(chunks, piece)
            if not message.get("more_body", False):
                return chunks if size <= limits.max_bytes else None
            timeout.extend(size)
    return None


class _BodyTimeout:
    """A time limit that grows with the bytes received; ends in `TimeoutError`."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._began_at = asyncio.get_running_loop().time()
        self._deadline = asyncio.timeout(limits.timeout_s)

    async def __aenter__(self) -> "_BodyTimeout":
        await self._deadline.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._deadline.__aexit__(*raised)

    def extend(self, size: int) -> None:
        """Set the limit by the bytes that have come since the beginning."""
        more_s = _S_PER_MIB * size / MIB
        self._deadline.reschedule(self._began_at + self._limits.timeout_s + more_s)
