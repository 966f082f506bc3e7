"""Judges limits, memory, ports and folders of this host."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.config.config import PoolConfig, WorkerConfig
from worker.doctor.finding import Finding, fail, mib, ok, warn
from worker.host.child import ChildOutcome

FILES, SHM, MEMORY, MLOCK, GROUP = "files", "shm", "memory", "mlock", "cgroup"
PORT, RUNTIME, WRITTEN, ZMQ, OPENMP = "port", "runtime_dir", "written", "zeromq", "openmp"

_GOOD_FILES, _FEW_FILES = 4096, 256
_GOOD_SHM = 2**30
_SHM_PATH = "/dev/shm"  # noqa: S108 - only named
_GOOD_TASKS = 64
UNLIMITED = -1


def check_files(soft: int, hard: int) -> Finding:
    """Judge the number of files that may be open: each connection is one."""
    if soft == UNLIMITED or soft >= _GOOD_FILES:
        return ok(FILES, f"{'any number' if soft == UNLIMITED else soft} may be open at once")
    remedy = f"ulimit -n {max(_GOOD_FILES, min(hard, 65536))}, or LimitNOFILE=65536 in the unit"
    text = f"only {soft} may be open at once, and every connection is one"
    return (fail if soft < _FEW_FILES else warn)(FILES, text, remedy)


def check_shm(size: int | None, n_devices: int) -> Finding:
    """Judge /dev/shm, which the GPUs of one model use to communicate in a container."""
    if n_devices < 2:
        return ok(SHM, "not used: no model is spread over several GPUs")
    if size is None or size < _GOOD_SHM:
        text = f"{_SHM_PATH} has {'nothing' if size is None else mib(size)} for {n_devices} GPUs"
        return warn(SHM, text, "docker run --shm-size=1g, or --ipc=host")
    return ok(SHM, f"{_SHM_PATH} has {mib(size)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Memory that the workers will need, in bytes."""

    weights: int
    """Weights of all models, each counted once."""
    mapped: int
    """Weights of the models that are mapped, each counted once; they use the page cache."""
    copies: int
    """Weights that are read instead of mapped, counted for every worker."""
    cache: int
    """KV caches of all workers together."""
    on_gpu: int | None = None
    """Free memory of the GPUs that get layers; None if the CPU computes."""


def check_memory(need: WorkerMemory, available: int, allowed: int | None) -> Finding:
    """Compare what the models need with what is free and what the control group allows."""
    limit = available if allowed is None else min(available, allowed)
    whose = "the control group allows" if allowed is not None and allowed < available else "free is"
    parts = f"{mib(need.weights)} of weights, at most {mib(need.cache)} of KV cache"
    have = f"{parts}; {whose} {mib(limit)}"
    if need.on_gpu is not None:
        text = f"{parts}; the GPUs have {mib(need.on_gpu)} free, {whose} {mib(limit)} of RAM"
        if need.weights + need.cache > need.on_gpu:
            remedy = "fewer layers (-ngl), a smaller context (-c), or -ctk q8_0 -ctv q8_0"
            return warn(MEMORY, text, remedy)
        return ok(MEMORY, text)
    if need.cache + need.copies > limit:
        remedy = "a smaller context (-c), fewer workers, -ctk q8_0 -ctv q8_0 -fa on, or --mmap"
        return fail(MEMORY, have, remedy)
    if need.cache + need.mapped + need.copies > limit:
        remedy = "weights would be read from disk again and again: a smaller quant, or more memory"
        return warn(MEMORY, have, remedy)
    return ok(MEMORY, have)


def check_mlock(limit: int, weights: int, *, is_wanted: bool) -> Finding:
    """Judge how much memory may be locked."""
    text = "any amount" if limit == UNLIMITED else mib(limit)
    if not is_wanted:
        return ok(MLOCK, f"not asked for; {text} may be locked")
    if limit != UNLIMITED and limit < weights:
        remedy = (
            "ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, --ulimit memlock=-1 for docker"
        )
        return warn(MLOCK, f"only {text} may be locked, the weights are {mib(weights)}", remedy)
    return ok(MLOCK, f"{text} may be locked")


def check_group(quota: float, n_threads: int, max_tasks: int | None) -> Finding:
    """Judge the limits of the control group on CPU time and processes."""
    if quota and n_threads > max(1, quota):
        text = f"{n_threads} threads for {quota:g} cores: all wait for the slowest at every step"
        return warn(GROUP, text, f"set -t {max(1, int(quota))} or leave it out, or raise the quota")
    if max_tasks is not None and max_tasks < _GOOD_TASKS + n_threads:
        return warn(
            GROUP,
            f"only {max_tasks} processes and threads",
            "raise ulimit -u, pids.max or TasksMax=",
        )
    limits = [f"{quota:g} cores"] if quota else []
    limits += [f"{max_tasks} processes and threads"] if max_tasks is not None else []
    return ok(GROUP, ", ".join(limits) or "no limit on CPU time or processes")


def check_port(where: str, fault: str) -> Finding:
    """Judge an address that the gateway will listen on; `fault` says why it cannot."""
    if not fault:
        return ok(PORT, f"{where} is free")
    text, _, remedy = fault.partition("; ")
    if "in use" in text:
        remedy = f"another process has it, perhaps llamapool: stop that, or {remedy}"
    return fail(PORT, text, remedy or "see --host")


def check_written(option: str, path: str, *, is_writable: bool) -> Finding:
    """Judge a file or a folder that the pool will write."""
    if is_writable:
        return ok(WRITTEN, f"{option} {path} can be written")
    text = f"{option} {path} cannot be written"
    return fail(WRITTEN, text, "make its folder, owned by this user, or name another")


def check_runtime(path: str, mode: int | None, *, is_writable: bool) -> Finding:
    """Judge the directory of sockets; `mode` is None if it is not there."""
    if not is_writable:
        remedy = "make it, owned by this user: install -d -m 0700, or RuntimeDirectory= in the unit"
        return fail(RUNTIME, f"{path} cannot be written", remedy)
    if mode is not None and mode & 0o022 and not mode & stat.S_ISVTX:
        return fail(RUNTIME, f"{path} is writable by others", f"chmod 0700 {path}")
    return ok(RUNTIME, f"{path} can be written")


def check_zmq(outcome: ChildOutcome, endpoints: tuple[str, ...]) -> Finding:
    """Judge ZeroMQ and the length of its sockets' paths."""
    facts = outcome.facts
    if outcome.code != 0 or "version" not in facts:
        reason = outcome.last_line or "it did not end"
        return fail(ZMQ, f"pyzmq cannot be loaded: {reason}", "pip install --force-reinstall pyzmq")
    most = int(facts.get("longest", 107))
    for endpoint in endpoints:
        if len(os.fsencode(endpoint.removeprefix("ipc://"))) > most:
            text = f"{endpoint} is longer than {most} bytes, the limit of a socket's path"
            return fail(ZMQ, text, "choose a shorter --runtime-dir or bind")
    if not facts.get("ipc"):
        return fail(ZMQ, "this libzmq has no ipc", "pip install --force-reinstall pyzmq")
    curve = "with" if facts.get("curve") else "without"
    return ok(ZMQ, f"libzmq {facts['version']}, {curve} CURVE; paths up to {most} bytes")


_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def check_openmp(environ: Mapping[str, str], workers: tuple[WorkerConfig, ...]) -> Finding:
    """Judge the OpenMP variables that the workers would inherit."""
    most = max((max(worker.n_threads, worker.n_threads_batch) for worker in workers), default=0)
    limit = environ.get("OMP_THREAD_LIMIT", "")
    if limit.isdecimal() and int(limit) < most:
        return warn(OPENMP, f"OMP_THREAD_LIMIT={limit} is below {most} threads", "unset it")
    spins = environ.get("GOMP_SPINCOUNT", "")
    if environ.get("OMP_WAIT_POLICY", "").lower() == "active" or (
        spins.lower() in ("infinite", "infinity") or (spins.isdecimal() and int(spins) > 10_000)
    ):
        text = "threads wait awake for long: any other process on their cores slows all of them"
        return warn(OPENMP, text, "unset OMP_WAIT_POLICY and GOMP_SPINCOUNT")
    if environ.get("OMP_WAIT_POLICY", "").lower() == "passive" and not spins:
        text = "OMP_WAIT_POLICY=passive: threads sleep at every barrier"
        return warn(OPENMP, text, "unset it, unless other processes want the same cores")
    if bound := [name for name in _BINDING if name in environ]:
        return ok(OPENMP, f"{', '.join(bound)} ignored: the workers' threads are not bound")
    return ok(OPENMP, "no OpenMP variable in the environment slows the workers")


def endpoints(pool: PoolConfig) -> tuple[str, ...]:
    """Return every ZeroMQ endpoint of a pool."""
    dialled = (endpoint for worker in pool.worker for endpoint in worker.connect)
    return tuple(dict.fromkeys([*pool.gateway.bind, *dialled]))
