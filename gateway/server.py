"""The running gateway: sockets, pool, Hypercorn, signals, drain, reports to the supervisor.

Hypercorn is embedded and runs in this process only. At a drain the listener stays open, so that
clients are told; it closes when the pool is drained.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import uvloop

from gateway.app import build_app
from gateway.checks import check_key, check_settings
from gateway.fleet.admin_listener import AdminListener
from gateway.free_descriptors import watch_descriptors
from gateway.free_memory import give_back_memory
from gateway.garbage import collect_garbage
from gateway.http.certificate import expires_at, fault_of_dates
from gateway.http.connections import Connections, ServerConfig
from gateway.http.http_server import HttpServer
from gateway.metrics.counters import ConnectionCounts
from gateway.metrics.metrics import Metrics
from gateway.parts import GatewayParts, parts_of
from gateway.pool.workers.slot_map import ExpectedWorker
from gateway.siblings.host_metrics import HostMetrics
from gateway.state_reports import notify_watchdog, report, send_late
from gateway.succession import (
    KEEP_ALIVE_S,
    Signals,
    await_workers,
    follow_signals,
    hand_over,
    is_restarted,
    is_successor,
    take_over,
)
from protocol.config.config import GatewayConfig
from protocol.endpoint import remove_sockets
from protocol.errors import EXIT_ERROR, EXIT_OK
from protocol.process import inherited
from protocol.process.listening import BACKLOG, Listeners, check_tls, is_local, open_listeners
from protocol.process.notify import Notifier
from protocol.process.parent_death import PARENT_VARIABLE

logger = logging.getLogger(__name__)

_FLUSH_S = 5.0
"""Time for finished answers to reach slow clients after the listener has closed. Before that, the
same time for answers to those who connected last."""


def run(config: GatewayConfig, notifier: Notifier, expected: Sequence[ExpectedWorker] = ()) -> int:
    """Serve until a signal comes; returns the exit code, raises `ConfigError`.

    The slots of `expected` workers keep their ids while these are down.
    """
    listeners = _listeners(config)
    config = listeners.config
    try:
        check_key(config)
        check_settings(config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            limit_threads(runner.get_loop(), config.n_threads)
            return runner.run(_run(listeners, notifier, expected))
    finally:
        listeners.close()
        notifier.close()


def _listeners(config: GatewayConfig) -> Listeners:
    """Take the sockets of the supervisor or of systemd, or bind; raises `ConfigError`."""
    if socks := inherited.from_supervisor():
        check_tls(config)
        return Listeners(socks, config, is_ours=False)
    return open_listeners(config)


def limit_threads(loop: asyncio.AbstractEventLoop, n_threads: int) -> None:
    """Set the number of the loop's executor threads; 0 or less keeps Python's default."""
    if n_threads > 0:
        loop.set_default_executor(ThreadPoolExecutor(n_threads))


async def _run(listeners: Listeners, notifier: Notifier, expected: Sequence[ExpectedWorker]) -> int:
    config = listeners.config
    signals = Signals()
    signals.install()
    metrics = Metrics()
    metrics.certificate_expires_at = _expiry(config)
    asyncio.get_running_loop().set_exception_handler(partial(_on_exception, metrics))
    parts = parts_of(config, metrics, expected)
    parts.pool.request_ids.install()
    siblings = parts.siblings
    counted = HostMetrics(metrics, parts.pool.status, siblings)
    app = build_app(config, parts, metrics)
    admin = AdminListener(app, config)
    server = HttpServer(app, server_config(config, metrics.connections), listeners.socks)
    duties = _duties(parts, notifier)
    try:
        if not await _begin(parts, signals, notifier):
            return EXIT_OK
        await siblings.open()
        await parts.shared.start()
        await server.start()
        await admin.start()
        _announce(listeners, notifier)
        duties.append(asyncio.create_task(report(parts.pool, notifier)))
        if not await follow_signals(parts.pool, signals, notifier):
            return await _drain(config, parts, server, signals, notifier)
        parts.retire()
        limit_s = config.drain_timeout_s + KEEP_ALIVE_S
        if await hand_over(server, signals, limit_s=limit_s):
            return EXIT_OK
        signals.leave.clear()
        return await _drain(config, parts, server, signals, notifier)
    finally:
        for duty in duties:
            duty.cancel()
        counted.keep()
        siblings.close()
        await _end(parts, admin, server, grace_s=0 if signals.leave.is_set() else _FLUSH_S)
        if PARENT_VARIABLE not in os.environ:  # else another gateway may have taken the paths over
            remove_sockets(config.bind)


async def _end(
    parts: GatewayParts, admin: AdminListener, server: HttpServer, *, grace_s: float
) -> None:
    """End everything; answers that end with it are logged and paid for afterwards."""
    await parts.close()
    try:
        await admin.close()
        await server.close(grace_s=grace_s)
    finally:
        await parts.settle()


def _duties(parts: GatewayParts, notifier: Notifier) -> list[asyncio.Task[None]]:
    """Begin what is done beside the requests until the process ends."""
    streams = parts.pool.transport.streams
    works = (
        notify_watchdog(notifier),
        send_late(notifier),
        collect_garbage(lambda: not streams.by_id),
        give_back_memory(),
        watch_descriptors(),
    )
    return [asyncio.create_task(work) for work in works]


async def _begin(parts: GatewayParts, signals: Signals, notifier: Notifier) -> bool:
    """Open the pool; a successor waits for its turns. False if this process is to end instead."""
    if not is_successor():
        await parts.start(joins=is_restarted())
        await await_workers(parts.pool)
        return True
    notifier.send(X_PREPARED=1)
    if not await signals.go():
        return False
    await parts.start(joins=True)
    return await take_over(parts.pool, signals, notifier)


def _announce(listeners: Listeners, notifier: Notifier) -> None:
    """Report that clients are served."""
    urls = listeners.urls
    _warn_if_open(listeners.config, listeners.bound_urls[0])
    _warn_of_dates(listeners.config)
    for url in listeners.bound_urls:
        logger.info("listening", extra={"url": url})
    notifier.send(X_URL=urls[0])
    notifier.ready(f"listening on {urls[0]}")


async def _drain(
    config: GatewayConfig,
    parts: GatewayParts,
    server: HttpServer,
    signals: Signals,
    notifier: Notifier,
) -> int:
    """Refuse new work and finish what runs; returns the exit code."""
    logger.info("draining", extra={"limit_s": config.drain_timeout_s})
    notifier.stopping()
    parts.drain()
    drained = asyncio.create_task(parts.pool.transport.streams.drained())
    leave = asyncio.create_task(signals.leave.wait())
    done, pending = await asyncio.wait(
        [drained, leave], timeout=config.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED
    )
    for task in pending:
        task.cancel()
    if drained not in done:
        cause = "second signal" if leave in done else "time is up"
        logger.warning(
            "not drained", extra={"cause": cause, "action": "tasks that still run are cut"}
        )
    elif leave not in done:
        await server.answer_last(limit_s=_FLUSH_S)
    return EXIT_ERROR if leave in done else EXIT_OK


def server_config(config: GatewayConfig, counts: ConnectionCounts) -> ServerConfig:
    """Return Hypercorn's settings."""
    result = ServerConfig()
    result.connections = Connections(
        counts,
        limit=config.limits.connections,
        head_s=min(config.limits.head_s, config.timeout_s),
        send_s=min(config.limits.send_timeout_s, config.timeout_s),
    )
    result.backlog = BACKLOG
    # Until its handshake is over a connection counts for no limit, and takes 100 KB.
    result.ssl_handshake_timeout = min(config.limits.head_s, config.timeout_s)
    result.keep_alive_timeout = KEEP_ALIVE_S
    result.include_server_header = False
    result.h11_max_incomplete_size = 32 * 1024
    result.errorlog = logging.getLogger("gateway.hypercorn")
    result.errorlog.setLevel(logging.WARNING)
    if config.ssl_cert_file:
        result.certfile = config.ssl_cert_file
        result.keyfile = config.ssl_key_file
    return result


def _on_exception(
    metrics: Metrics, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Log and count an exception of a callback; failed TLS handshakes are ignored."""
    if not isinstance(context.get("exception"), ssl.SSLError):
        metrics.fault("loop")
        loop.default_exception_handler(context)


def _warn_if_open(config: GatewayConfig, url: str) -> None:
    if not is_local(config) and not config.has_keys:
        logger.warning(
            "no key is needed",
            extra={
                "url": url,
                "action": "ANYBODY who can reach this address is served",
                "hint": "set --api-key or --api-key-file",
            },
        )


def _expiry(config: GatewayConfig) -> float | None:
    if not config.ssl_cert_file:
        return None
    return expires_at(config.ssl_cert_file, config.ssl_key_file)


def _warn_of_dates(config: GatewayConfig) -> None:
    if not config.ssl_cert_file:
        return
    if cause := fault_of_dates(config.ssl_cert_file, config.ssl_key_file):
        logger.warning(
            "certificate not valid",
            extra={
                "file": config.ssl_cert_file,
                "cause": cause,
                "action": "it is served, and clients that check it hang up",
                "hint": "replace it, or set the clock; then reload",
            },
        )
