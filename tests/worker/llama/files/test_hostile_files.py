"""Model files that say what cannot be: the start ends, with the name of the file."""

import struct
from pathlib import Path

import gguf
import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from tests.models.llama import write_llama
from worker.llama.backend import LlamaBackend
from worker.llama.files.gguf import read_vectors

pytestmark = pytest.mark.model

CONTEXT = b"llama.context_length"


def claiming(path: Path, n_ctx: int) -> Path:
    """Write a model whose file says that it was trained on so many tokens."""
    data = bytearray(write_llama(path).read_bytes())
    place = data.index(CONTEXT) + len(CONTEXT)
    assert struct.unpack_from("<I", data, place) == (gguf.GGUFValueType.UINT32,)
    struct.pack_into("<I", data, place + 4, n_ctx)
    path.write_bytes(data)
    return path


def opened(path: Path, **fields: int | str) -> LlamaBackend:
    config = WorkerConfig(model=str(path), n_slots=1, n_threads=1, **fields)  # type: ignore[arg-type]
    return LlamaBackend(config, lambda _fraction: None)


@pytest.mark.parametrize("n_ctx", [0, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_context_that_cannot_be_is_unknown(tmp_path: Path, n_ctx: int) -> None:
    path = claiming(tmp_path / "odd.gguf", n_ctx)
    backend = opened(path, n_ctx=64)
    assert (backend.card.n_ctx_train, backend.card.n_ctx) == (0, 256)
    backend.close()
    with pytest.raises(ConfigError, match=r"odd\.gguf says no length of its context"):
        opened(path)


def test_a_control_vector_of_lists_without_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nested.gguf"
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<I", gguf.GGUFValueType.ARRAY)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IQ", 9, 1) * 9000)
    with pytest.raises(ConfigError, match=r"nested\.gguf is not a complete GGUF file"):
        read_vectors(path)


def test_a_template_that_no_gateway_would_take_ends_the_start(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "wordy.gguf")
    with pytest.raises(ConfigError, match=r"template of .*wordy\.gguf has 1048577 characters"):
        opened(path, n_ctx=64, chat_template="x" * (1024 * 1024 + 1))
