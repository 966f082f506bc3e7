"""A pool for whatever JSON arrives."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.served import Served, serving
from tests.models.shallow import shallow_path


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where slots are saved: a folder in an empty one."""
    folder: Path = tmp_path_factory.mktemp("outer") / "slots"
    folder.mkdir()
    return folder


@pytest.fixture(scope="package")
def pool(folder: Path) -> Iterator[Served]:
    """One worker on the shallow model, with a small context, that also embeds and saves slots."""
    arguments = ["-m", shallow_path(), "--workers", "1", "-np", "2", "-c", "1024", "--port", "0"]
    arguments += ["--embeddings", "--pooling", "mean", "--slot-save-path", str(folder)]
    with serving(*arguments) as served:
        yield served
        assert served.complete("Hi").status_code == 200
        assert "died" not in served.text
