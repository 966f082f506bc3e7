"""The threads that compute: their CPUs, their priority, and how they wait.

Without any of these options llama.cpp makes its own threads, which costs nothing here.
"""

import ctypes
import logging
import os
from typing import Any

import llama_cpp.llama_cpp as lib

from protocol.config.config import WorkerConfig
from protocol.cpulist import parse_cpus
from worker.llama.startup import open_ggml

logger = logging.getLogger(__name__)

_MAX_THREADS = 512
"""ggml's GGML_MAX_N_THREADS."""
_POLL = 50
"""How long threads wait awake, of 100; llama.cpp's own default."""
_SAID = ("prio", "prio_batch", "cpu_strict", "cpu_strict_batch", "cpus_batch", "poll_batch")
_NICE = {-1: 5, 0: 0, 1: -5, 2: -10, 3: -20}
"""llama.cpp's `set_process_priority`."""


class _Params(ctypes.Structure):
    """ggml's `ggml_threadpool_params`."""

    _fields_ = [  # ctypes
        ("cpumask", ctypes.c_bool * _MAX_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    ]


class Threads:
    """Owns the pools of one context."""

    def __init__(self, context: Any, config: WorkerConfig) -> None:
        self._pools: list[int] = []
        self._cpu = open_ggml("ggml-cpu")
        self._cpu.ggml_threadpool_new.restype = ctypes.c_void_p
        self._cpu.ggml_threadpool_free.argtypes = [ctypes.c_void_p]
        single, batch = _single(config), _batch(config)
        pools = [self._new(single), None if bytes(single) == bytes(batch) else self._new(batch)]
        attach = lib._lib.llama_attach_threadpool
        attach.argtypes = [ctypes.c_void_p] * 3
        attach(ctypes.cast(context, ctypes.c_void_p), *pools)

    def _new(self, params: _Params) -> int:
        pool = int(self._cpu.ggml_threadpool_new(ctypes.byref(params)))
        self._pools.append(pool)
        return pool

    def close(self) -> None:
        """End the threads; the context must be gone."""
        for pool in self._pools:
            self._cpu.ggml_threadpool_free(pool)
        self._pools.clear()


def open_threads(context: Any, config: WorkerConfig) -> Threads | None:
    """Make the threads of a context; None unless an option sets anything about them."""
    plain = WorkerConfig()
    if all(getattr(config, name) == getattr(plain, name) for name in _SAID):
        return None
    return Threads(context, config)


def prioritize(prio: int) -> None:
    """Set the priority of the process, as llama-server does; logs a warning without the right."""
    if not prio:
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE[prio])
    except OSError as error:
        logger.warning(
            "priority not set",
            extra={
                "prio": prio,
                "cause": error.strerror,
                "action": "the worker runs with the priority that it has",
                "hint": "give it the capability CAP_SYS_NICE, or leave --prio out",
            },
        )


def _single(config: WorkerConfig) -> _Params:
    poll = config.poll if config.poll >= 0 else _POLL
    return _params(config.n_threads, config.cpus, config.prio, poll, config.cpu_strict)


def _batch(config: WorkerConfig) -> _Params:
    poll = config.poll_batch if config.poll_batch >= 0 else config.poll
    strict = config.cpu_strict if config.cpu_strict_batch is None else config.cpu_strict_batch
    return _params(
        config.n_threads_batch or config.n_threads,
        config.cpus_batch or config.cpus,
        config.prio_batch or config.prio,
        poll if poll >= 0 else _POLL,
        strict,
    )


def _params(n_threads: int, cpus: str, prio: int, poll: int, is_strict: bool) -> _Params:
    params = _Params(n_threads=n_threads, prio=prio, poll=poll, strict_cpu=is_strict)
    for cpu in parse_cpus(cpus) if cpus not in ("", "all") else ():
        if cpu < _MAX_THREADS:
            params.cpumask[cpu] = True
    return params
