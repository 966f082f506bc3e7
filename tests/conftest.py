"""What all tests share."""

import gc
import logging
import os
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings
from xdist import is_xdist_worker
from xdist.scheduler import LoadFileScheduling

from protocol.process.logs import event_text

# A loaded machine makes generation slow; that says nothing about the code under test.
_CALM = [HealthCheck.too_slow]
# Hypothesis's own number of examples; `make test ARGS=--hypothesis-profile=thorough`.
settings.register_profile("thorough", deadline=None, derandomize=True, suppress_health_check=_CALM)
# Looks for what is new, so that it may find something at any time.
settings.register_profile("explore", deadline=None, suppress_health_check=_CALM)
# `make test`: a merge must not depend on luck, nor wait for long. See tests/examples.py.
settings.register_profile("shared", settings.get_profile("thorough"), max_examples=40)
# `make quick`: every property is tried.
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=10)
settings.load_profile("shared")


_LONG = (
    *("tests/browser", "tests/faults", "tests/parity", "tests/deploy", "tests/e2e"),
    *("tests/monitoring", "tests/hostile", "tests/worker/llama"),
    *("tests/gateway/test_server.py", "tests/benchmarks"),
    *("tests/worker/supervisor/test_supervisor.py", "tests/worker/test_sleep.py"),
    *("tests/worker/output", "tests/worker/grammar", "tests/worker/settings/test_arguments.py"),
    *("tests/gateway/pool/routing", "tests/protocol/test_codec.py"),
)
"""Folders and files that take long, the longest first: one that began late would be left over."""
_BETWEEN = 0.7
"""Share of all other files that runs beside these; the rest is left for the end."""
_TOGETHER = {
    "tests/browser": ("tests/browser",),
    "tests/e2e/fuzz": ("tests/e2e/fuzz",),
    # Two libraries of vendors: a second to import.
    "tests/e2e/test_real_clients.py": (
        *("tests/e2e/test_real_clients.py", "tests/e2e/test_real_model.py"),
        *("tests/e2e/test_tools.py", "tests/gateway/clients"),
        "tests/gateway/http/test_route_notice.py",
        *("tests/gateway/keys/test_http_waiting.py", "tests/gateway/routes/test_http_vectors.py"),
    ),
}
"""Files and folders whose tests share what is dear to start: one process runs all of them."""


_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")
"""Variables that hide a machine's GPUs from llama.cpp."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of whether the real model computes on a GPU."""
    parser.addoption("--gpu", action="store_true", help="compute on a GPU; else GPUs are hidden")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs, whose rounding gives other texts than those that the tests know."""
    if not config.getoption("--gpu"):
        os.environ.update(dict.fromkeys(_GPUS, ""))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip with `--gpu` what only a CPU computes to the last bit."""
    if item.config.getoption("--gpu") and item.get_closest_marker("cpu"):
        pytest.skip("compares with what a CPU computes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Report a test to xdist's main process once: not its set-up and tear-down, if they pass.

    A report takes 0.4 ms of CPU; only `--durations` and `--junitxml` read the two left out.
    """
    option = item.config.option
    if not is_xdist_worker(item) or option.durations is not None or option.xmlpath:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, and put files that only compute between: those mostly wait."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(_together(item.nodeid.partition("::")[0]), []).append(item)
    long = sorted((name for name in files if name.startswith(_LONG)), key=_rank)
    short = [name for name in files if not name.startswith(_LONG)]
    n_each = int(len(short) * _BETWEEN / max(1, len(long)))
    order = [
        name for i, one in enumerate(long) for name in (one, *short[i * n_each : (i + 1) * n_each])
    ]
    order += short[len(long) * n_each :]
    items[:] = [item for name in order for item in files[name]]


def _together(file: str) -> str:
    """Return the name of those that stay together, or the file itself."""
    return next((name for name, files in _TOGETHER.items() if file.startswith(files)), file)


def _rank(name: str) -> int:
    return next(i for i, folder in enumerate(_LONG) if name.startswith(folder))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Import and collect without looking for garbage, of which that leaves little."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Spare the garbage collector what the collected tests hold: each full collection walks it.

    It also looks less often than by itself (700 objects): tests are many and short. What garbage
    there is stays too: to find it takes a third of a second in each process.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class _FileScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a file, or a folder of those that stay together, to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return _together(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _FileScheduling | None:
    """Schedule by file where that was asked for."""
    return _FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def certificates() -> Iterator[None]:
    """Read the public certificates once, not for each of the clients that tests make: 26 ms."""
    with pytest.MonkeyPatch.context() as patch:
        once = cache(httpx.create_ssl_context)
        patch.setattr("httpx._transports.default.create_ssl_context", once)
        yield


class _EventFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return event_text(record) + trace


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Show events with their fields in `caplog.text`, as a log line does."""
    caplog.handler.setFormatter(_EventFormatter())
    return caplog
