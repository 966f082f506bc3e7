"""Requests to the admin API of a running pool, over TCP or its admin socket."""

import http.client
import json
import os
import re
import socket
import ssl
import struct
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.endpoint import ADMIN_SOCKET
from protocol.errors import EXIT_UNAVAILABLE
from protocol.filenames import expanded
from worker.settings.arguments import CommandFailed
from worker.settings.resolve import CONTROL_SOCKET
from worker.supervisor.runtime_directory import PREFIX, parents

_TIMEOUT_S = 30.0
"""Seconds without data until an answer of the gateway is given up."""
SERVICE_DIR = Path("/run/llamapool")
"""RuntimeDirectory of the systemd units, in deploy/systemd/."""
_MAX_ANSWER = 64 << 20
"""Bytes of an answer that are read."""


class AdminError(CommandFailed):
    """A request to a pool that failed; the message says what to do."""


class NoPoolError(AdminError):
    """No pool was found or reached."""

    exit_code = EXIT_UNAVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAddress:
    """Address of a running pool: a URL, or the path of its admin socket."""

    url: str = ""
    key: str = ""
    path: str = ""

    def __str__(self) -> str:
        return self.url or f"unix:{self.path}"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class AdminClient:
    """Asks one pool; each request has a connection of its own."""

    def __init__(self, address: PoolAddress, timeout_s: float = _TIMEOUT_S) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def get(self, path: str) -> dict[str, Any]:
        """Return the answer to a GET; raises `AdminError`.

        If the connection breaks, it asks once more: a gateway that hands over closes its socket.
        """
        try:
            return self._ask("GET", path, None)
        except NoPoolError as error:
            if not isinstance(error.__cause__, ConnectionError):
                raise
            return self._ask("GET", path, None)

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the answer to a POST; raises `AdminError`."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        headers: dict[str, str | bytes] = {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key := self._address.key:
            if not key.isprintable():
                raise AdminError(
                    "--admin-key (LLAMA_API_KEY) has characters that cannot be printed"
                )
            headers["Authorization"] = b"Bearer " + os.fsencode(key)
        connection, prefix = self._connect()
        try:
            data = _encoded(body) if body is not None else None
            connection.request(method, prefix + path, data, headers)
            response = connection.getresponse()
            status, text = response.status, response.read(_MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or "no answer"
            raise NoPoolError(
                f"no pool answers at {self._address}: {reason}. Is `llamapool serve` running?"
            ) from error
        finally:
            connection.close()
        return _read(status, text, self._address)

    def _connect(self) -> tuple[http.client.HTTPConnection, str]:
        address = self._address
        if not address.url:
            return _UnixConnection(address.path, self._timeout_s), ""
        parts, host, port = _parts(address.url)
        prefix = parts.path.rstrip("/")
        if parts.scheme == "https":
            context = ssl.create_default_context()
            https = http.client.HTTPSConnection(
                host, port, timeout=self._timeout_s, context=context
            )
            return https, prefix
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s), prefix


def _parts(url: str) -> tuple[urllib.parse.SplitResult, str, int | None]:
    """Return the parts of a URL, its host as the name service takes it, and its port."""
    form = "must be http://HOST:PORT or https://HOST"
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except UnicodeError as error:
        raise NoPoolError(f"--url {url}: {form}: no host has such a name") from error
    except ValueError as error:
        raise NoPoolError(f"--url {url}: {error}") from error
    is_plain = re.fullmatch(r"[\x21-\x7e]*", host + parts.path)
    if parts.scheme not in ("http", "https") or not host or not is_plain:
        raise NoPoolError(f"--url {url}: {form}")
    return parts, host, port


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise AdminError("a name or a text of this command is no UTF-8") from error


def _read(status: int, text: bytes, address: PoolAddress) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise AdminError(f"what answers at {address} is no llamapool (status {status})")
    if status < 400:
        return answer
    error = answer.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    hint = ": give an admin's key with --admin-key or LLAMA_API_KEY" if status == 401 else ""
    if status == 404 and not isinstance(message, str):
        message = "this server has no admin API"
    raise AdminError(f"{message or f'status {status}'}{hint}")


def find_pool(url: str, key: str, runtime_dir: str) -> PoolAddress:
    """Return the address that is given, or that of the only pool of this user on this host.

    Root also finds that of the systemd units. Raises `NoPoolError` if there is none, or several.
    """
    if url:
        return PoolAddress(url=url, key=key)
    if runtime_dir:
        path = expanded(runtime_dir) / ADMIN_SOCKET
        try:
            if path.is_socket():
                return PoolAddress(path=str(path))
        except PermissionError as error:
            raise NoPoolError(f"{runtime_dir} is closed to this user") from error
        if runtime_dir != os.environ.get("RUNTIME_DIRECTORY"):  # `serve` makes one of its own
            raise NoPoolError(f"no pool runs in {runtime_dir}: there is no {ADMIN_SOCKET}")
    found = [path for folder in parents() for path in sorted(folder.glob(f"{PREFIX}*"))]
    alive = [path / ADMIN_SOCKET for path in found if _is_alive(path / ADMIN_SOCKET, _mine)]
    of_service = [SERVICE_DIR, *sorted(SERVICE_DIR.glob(f"{PREFIX}*"))]
    alive += [
        path / ADMIN_SOCKET for path in of_service if _is_alive(path / ADMIN_SOCKET, _may_ask)
    ]
    alive = list(dict.fromkeys(alive))
    if len(alive) == 1:
        return PoolAddress(path=str(alive[0]))
    if not alive:
        raise NoPoolError(
            "no running pool of this user is found on this host: name it with --url and "
            "--admin-key, or its runtime_dir with --runtime-dir"
        )
    folders = ", ".join(str(path.parent) for path in alive)
    raise NoPoolError(f"{len(alive)} pools run on this host: choose with --runtime-dir: {folders}")


def supervisor_pid(folder: Path) -> int:
    """Return the process that listens to the gateways in a runtime directory; raises `OSError`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(folder / CONTROL_SOCKET))
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _is_alive(path: Path, may_ask: Callable[[Path], bool]) -> bool:
    """Whether a process that this user may ask listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            return may_ask(path) and sock.connect_ex(str(path)) == 0
        except OSError:
            return False


def _mine(path: Path) -> bool:
    return path.stat().st_uid == os.getuid()


def _may_ask(path: Path) -> bool:
    """Whether a socket below `SERVICE_DIR` is this user's, or this user is root."""
    return os.getuid() in (0, path.stat().st_uid)
