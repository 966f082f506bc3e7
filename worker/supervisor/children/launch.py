"""Command lines and environments of the gateway and the workers."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import protocol
from protocol.config.config import PoolConfig, WorkerConfig, dump_keys
from protocol.config.options.table import OPTIONS, UNUSED
from protocol.process.inherited import LISTEN_VARIABLE
from protocol.process.logs import is_journal
from protocol.process.notify import STATE_VARIABLE
from protocol.process.parent_death import PARENT_VARIABLE
from worker.host.process_environment import process_environment

GATEWAY = "gateway"

_GATEWAY_WATCHDOG_S = 15.0
"""Seconds without a sign of life after which a gateway is killed."""
_PYTHON = (sys.executable, "-P")
"""Without -P, a folder `worker` in the current directory would be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How one process is started."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: bytes = field(default=b"", repr=False)
    """Standard input of the process: secrets, which must appear neither in files nor in `ps`."""
    model: str = ""
    """Alias of its model; empty for the gateway."""
    drain_timeout_s: float = 600.0
    """Seconds that the tasks of a gateway have to finish."""
    watchdog_s: float = 0.0
    """Longest time between two watchdog messages after READY; 0 means no limit."""
    journal: bool = False
    """Whether its output goes to the system's journal."""
    fds: tuple[int, ...] = ()
    """Descriptors that it inherits: the listening sockets of a gateway."""

    @property
    def is_gateway(self) -> bool:
        """Whether this is a gateway."""
        return not self.model


def launches(
    config: PoolConfig, path: Path, environ: Mapping[str, str], fds: Sequence[int] = ()
) -> tuple[Launch, ...]:
    """Return the launches of a resolved configuration, written to `path`; the gateways first.

    `fds` are the listening sockets.
    """
    first = gateways(config, path, environ, fds)
    return (*first, *workers(config.worker, path, environ))


def gateways(
    config: PoolConfig, path: Path, environ: Mapping[str, str], fds: Sequence[int] = ()
) -> tuple[Launch, ...]:
    """Return the launches of the gateways; the file at `path` does not contain their keys."""
    count, keys = config.gateway.gateways, dump_keys(config.gateway)
    env = {**_shared(environ), LISTEN_VARIABLE: ",".join(map(str, fds))}
    return tuple(
        Launch(
            name=GATEWAY if count == 1 else f"{GATEWAY}-{index}",
            argv=(
                *(*_PYTHON, "-m", "gateway", "--config", str(path)),
                *(("--index", str(index)) if index else ()),
                *(("--keys-on-stdin",) if keys else ()),
            ),
            env=_watched(env, _GATEWAY_WATCHDOG_S),
            stdin=keys,
            fds=tuple(fds),
            drain_timeout_s=config.gateway.drain_timeout_s,
            watchdog_s=_GATEWAY_WATCHDOG_S,
            journal=is_journal(2),
        )
        for index in range(count)
    )


def workers(
    configs: Iterable[WorkerConfig], path: Path, environ: Mapping[str, str]
) -> tuple[Launch, ...]:
    """Return the launches of the workers of the configuration at `path`."""
    env = _shared(environ)
    flags = ("--config", str(path))
    return tuple(_worker(worker, env, flags) for worker in configs)


def _worker(worker: WorkerConfig, env: Mapping[str, str], flags: tuple[str, ...]) -> Launch:
    own = process_environment(worker, env)
    return Launch(
        name=worker.name,
        argv=(*_PYTHON, "-m", "worker", *flags, "--name", worker.name),
        env=_watched({**env, **own}, worker.stall_s),
        model=worker.alias,
        watchdog_s=worker.stall_s,
        journal=is_journal(2),
    )


def download(model: str, environ: Mapping[str, str], token: str) -> Launch:
    """Return the launch of a process that fetches a model into the Hugging Face cache."""
    return Launch(
        name=f"download {model}",
        argv=(*_PYTHON, "-m", "worker.models.download", model),
        env={**_shared(environ), "HF_TOKEN": token},
        model=model,
    )


def _watched(env: Mapping[str, str], watchdog_s: float) -> dict[str, str]:
    return {**env, "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}


_DEFAULTS = {
    "GGML_NO_BACKTRACE": "1",  # ggml's handler forks a debugger, which hangs a crashing worker
    "MALLOC_ARENA_MAX": "2",
    "PYTHONFAULTHANDLER": "1",  # prints the Python stack after a crash in C
}
_OURS = (
    *("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "JOURNAL_STREAM"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", LISTEN_VARIABLE, STATE_VARIABLE),
)


def _shared(environ: Mapping[str, str]) -> dict[str, str]:
    # The resolved file contains the options; a child must not apply them again.
    options = {option.env for option in OPTIONS} | {row.env for row in UNUSED}
    dropped = options.union(_OURS)
    env = {name: value for name, value in environ.items() if name not in dropped}
    root = Path(protocol.__file__).parent.parent
    if root.name not in ("site-packages", "dist-packages"):  # a checkout is not installed
        paths = [str(root), *filter(None, [env.get("PYTHONPATH")])]
        env["PYTHONPATH"] = os.pathsep.join(paths)
    return {**_DEFAULTS, **env, PARENT_VARIABLE: str(os.getpid())}
