"""Served pools of real processes: over the fake backend, and one with a model."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import python
from tests.e2e.served import Served, serving
from tests.models.shallow import exact_path

Serve = Callable[..., Served]


def toml(table: dict[str, Any]) -> str:
    """Write one flat table's keys."""
    quoted = {
        key: f'"{value}"' if isinstance(value, str) else str(value).lower()
        for key, value in table.items()
    }
    return "".join(f"{key} = {value}\n" for key, value in quoted.items())


@contextlib.contextmanager
def pools_in(folder: Path) -> Iterator[Serve]:
    """Run `llamapool serve` with these workers; `gateway` holds keys of its table."""
    running: list[Served] = []

    def begin(*workers: dict[str, Any], gateway: dict[str, Any] | None = None) -> Served:
        text = "[gateway]\n" + toml({"port": 0, "heartbeat_s": 0.2, **(gateway or {})})
        for worker in workers or ({},):
            text += "[[worker]]\n" + toml({"backend": "fake", "n_slots": 4, **worker})
        path = folder / f"pool{len(running)}.toml"
        path.write_text(text)
        served = Served(python("-m", "worker.cli", "serve", "--config", str(path)))
        served.config = path
        running.append(served)
        return served

    try:
        yield begin
    finally:
        for served in running:
            served.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start pools that live as long as the test."""
    with pools_in(tmp_path) as begin:
        yield begin


@pytest.fixture(scope="module")
def serve_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start pools that live as long as the tests of the file: for those that leave them whole."""
    with pools_in(tmp_path_factory.mktemp("pools")) as begin:
        yield begin


@pytest.fixture(scope="package")
def real_pool() -> Iterator[Served]:
    """Two workers of four slots that make embeddings beside, on the model's first layers.

    With its own weights: on a busy machine Node joins the events of a faster stream.
    """
    model = ("-m", exact_path(), "--embeddings", "--pooling", "mean")
    arguments = ("--workers", "2", "-np", "4", "-c", "4096", "--port", "0", "--metrics")
    with serving(*model, *arguments) as served:
        yield served
