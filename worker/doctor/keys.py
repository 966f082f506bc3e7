"""Checks of links between hosts: key files, the bound address, the connection to gateways."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from protocol.config.config import GatewayConfig, WorkerConfig
from protocol.curve import is_exposed, public_files, read_public, read_secret
from protocol.endpoint import Endpoint, bound, dialled
from protocol.errors import ConfigError
from worker.doctor.finding import Finding, fail, ok, warn
from worker.doctor.probe import unix_fault
from worker.settings.resolve import MADE_AT_START

KEYS, LINKS = "keys", "links"
_DIAL_S = 3.0
"""Seconds for a gateway to accept a connection."""
_MAKE = "llamapool keygen; docs/running/fleet.md has all steps"


def gateway_keys(gateway: GatewayConfig) -> Iterator[Finding]:
    """Judge the key of a gateway, and those of its workers."""
    if not any(endpoint.startswith("tcp:") for endpoint in gateway.bind):
        return
    try:
        bound(gateway.bind, has_keys=bool(gateway.curve_key_file and gateway.worker_keys))
        yield from _secret(gateway.curve_key_file)
        n = len([read_public(path) for path in public_files(Path(gateway.worker_keys))])
    except ConfigError as error:
        yield fail(KEYS, str(error), _MAKE)
        return
    if n:
        yield ok(KEYS, f"{gateway.worker_keys}: {n} worker{'s' * (n != 1)} may connect")
    else:
        text = f"{gateway.worker_keys} holds no .pub file: no worker gets in over tcp"
        yield warn(KEYS, text, "copy the .pub file of each worker's host into it")


def worker_keys(worker: WorkerConfig) -> Iterator[Finding]:
    """Judge the keys of a worker that dials gateways on other hosts."""
    if not any(endpoint.startswith("tcp:") for endpoint in worker.connect):
        return
    try:
        dialled(worker.connect, has_keys=bool(worker.curve_key_file and worker.gateway_keys))
        yield from _secret(worker.curve_key_file)
        files = [
            path for gateway_key in worker.gateway_keys for path in public_files(Path(gateway_key))
        ]
        n = len({read_public(path).key for path in files})
    except ConfigError as error:
        yield fail(KEYS, str(error), _MAKE)
        return
    if n:
        yield ok(KEYS, f"{worker.name}: {n} key{'s' * (n != 1)} of gateways")
    else:
        yield fail(KEYS, f"{worker.gateway_keys[0]}: holds no .pub file of a gateway", _MAKE)


def _secret(path: str) -> Iterator[Finding]:
    read_secret(Path(path))
    if is_exposed(Path(path)):
        yield warn(KEYS, f"{path} can be read by others than its owner", f"chmod 600 {path}")


def bound_links(gateway: GatewayConfig) -> Iterator[Finding]:
    """Judge whether this host has the addresses and folders that a gateway binds."""
    for text in gateway.bind:
        with contextlib.suppress(ConfigError):  # reported by `gateway_keys`
            (endpoint,) = bound([text], has_keys=True)
            if endpoint.is_tcp:
                yield _check_bind(endpoint)
            elif MADE_AT_START not in text and (
                fault := unix_fault(Path(text.removeprefix("ipc://")))
            ):
                yield fail(LINKS, f"bind {text}: {fault}", "name a folder that can be written")


def _check_bind(endpoint: Endpoint) -> Finding:
    host = None if endpoint.host in ("*", "0.0.0.0", "::") else endpoint.host  # noqa: S104
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, number, _, address in found:
            with socket.socket(family, kind, number) as probe:
                probe.bind(address)
    except OSError as error:
        text = f"bind {endpoint.text}: {error.strerror or error}"
        return fail(LINKS, text, "name an address of this host: ip -br addr")
    return ok(LINKS, f"{endpoint.text}: an address of this host")


def dialled_links(worker: WorkerConfig) -> Iterator[Finding]:
    """Judge whether the gateways that a worker dials can be reached."""
    for text in worker.connect:
        with contextlib.suppress(ConfigError):  # reported by `worker_keys`
            (endpoint,) = dialled([text], has_keys=True)
            if endpoint.is_tcp:
                yield _check_dial(endpoint)


def _check_dial(endpoint: Endpoint) -> Finding:
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=_DIAL_S):
            return ok(LINKS, f"{endpoint.text}: somebody listens there")
    except OSError as error:
        text = f"{endpoint.text} cannot be reached: {error.strerror or error}"
        return warn(LINKS, text, "does the gateway run? is its port open in the firewall?")
