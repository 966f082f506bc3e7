"""Models loaded for embeddings, for the tests of the real llama.cpp."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protocol.config.config import WorkerConfig
from tests.cores import threads
from worker.llama.backend import LlamaBackend
from worker.llama.embedding.context import LlamaEmbedder


@contextmanager
def loaded(model: str | Path, **config: Any) -> Iterator[tuple[LlamaBackend, LlamaEmbedder]]:
    """Load a model for embeddings."""
    values = {"n_ctx": 1024, "n_threads": threads(), "embeddings": True, "warmup": False} | config
    backend = LlamaBackend(WorkerConfig(model=str(model), **values), lambda _: None)
    assert backend.embedder is not None
    yield backend, backend.embedder
    backend.close()
