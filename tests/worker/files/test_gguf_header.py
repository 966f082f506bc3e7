"""Reading the beginning of a model's file, and how much memory it will need."""

import struct
from pathlib import Path

import pytest

from protocol.config.config import WorkerConfig
from tests.worker.conftest import model_path
from worker.files.gguf_header import Header, cache_bytes, read_header, tensor_names


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(*entries: bytes, n_tensors: int = 1, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, len(entries)) + b"".join(entries)


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def word(key: str, value: str) -> bytes:
    return text(key) + struct.pack("<I", 8) + text(value)


def numbers(key: str, *values: int) -> bytes:
    head = struct.pack("<IIQ", 9, 5, len(values))
    return text(key) + head + struct.pack(f"<{len(values)}i", *values)


SMALL = (
    word("general.architecture", "llama"),
    number("llama.block_count", 2),
    number("llama.embedding_length", 64),
    number("llama.attention.head_count", 4),
    number("llama.attention.head_count_kv", 2),
    number("llama.context_length", 100),
)


def header(tmp_path: Path, data: bytes, name: str = "m.gguf") -> Header:
    path = tmp_path / name
    path.write_bytes(data)
    return read_header(path)


def test_a_header_is_read(tmp_path: Path) -> None:
    found = header(tmp_path, gguf(*SMALL, numbers("x", *range(9000)), number("y", 7)))
    assert (found.fault, found.version, found.n_tensors) == ("", 3, 1)
    assert found.of_model("block_count") == 2
    assert found.values["y"] == 7
    assert found.values["x"] is None


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"GGUX" + b"\0" * 40, "does not begin with GGUF"),
        (b"GGUF", "cut short"),
        (gguf(*SMALL)[:-6], "cut short"),
        (gguf(version=1), "version is 1"),
        (gguf(text("k") + struct.pack("<I", 77)), "broken"),
        (gguf(text("k") + struct.pack("<IIQ", 9, 8, 2**62)), "broken"),
        (gguf(struct.pack("<Q", 2**62)), "broken"),
        (gguf(text("k") + struct.pack("<IIQ", 9, 4, 2**63), numbers("x", 1)), "broken"),
        (gguf(text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9000), "broken"),
    ],
)
def test_broken_files_are_named_and_nothing_hangs(tmp_path: Path, data: bytes, fault: str) -> None:
    found = header(tmp_path, data)
    assert fault in found.fault


def test_parts_of_a_split_file_count_and_must_be_there(tmp_path: Path) -> None:
    data = gguf(*SMALL)
    found = header(tmp_path, data, "m-00001-of-00002.gguf")
    assert found.fault == "its part m-00002-of-00002.gguf is missing"
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(b"12345")
    found = read_header(tmp_path / "m-00001-of-00002.gguf")
    assert (found.fault, found.size) == ("", len(data) + 5)


def test_the_cache_is_estimated_from_the_heads(tmp_path: Path) -> None:
    found = header(tmp_path, gguf(*SMALL))
    assert cache_bytes(found, WorkerConfig()) == 100 * 2 * 2 * (16 * 2 + 16 * 2)
    small = WorkerConfig(n_ctx=10, cache_type_k="q8_0", cache_type_v="f32")
    assert cache_bytes(found, small) == 10 * 4 * (17 + 64)


def test_figures_that_are_no_numbers_give_no_estimate(tmp_path: Path) -> None:
    words = text("llama.block_count") + struct.pack("<I", 8) + text("many")
    assert cache_bytes(header(tmp_path, gguf(*SMALL, words)), WorkerConfig()) == 0


def test_layers_may_have_heads_of_their_own(tmp_path: Path) -> None:
    parts = (*SMALL[:3], numbers("llama.attention.head_count", 4, 4), SMALL[5])
    found = header(tmp_path, gguf(*parts, numbers("llama.attention.head_count_kv", 2, 0)))
    assert cache_bytes(found, WorkerConfig()) == 100 * 2 * 64
    assert cache_bytes(header(tmp_path, gguf(*SMALL[:2])), WorkerConfig()) == 0


def test_the_default_model_is_read() -> None:
    found = read_header(Path(model_path()))
    assert found.fault == ""
    assert found.n_tensors == 272
    assert cache_bytes(found, WorkerConfig(n_ctx=8192)) == 8192 * 30 * 3 * 64 * 4


def test_the_names_of_the_tensors_are_read(tmp_path: Path) -> None:
    names = tensor_names(Path(model_path()))
    assert {"token_embd.weight", "blk.29.ffn_up.weight", "output_norm.weight"} <= names
    data = Path(model_path()).read_bytes()[:2_000_000]
    (tmp_path / "short.gguf").write_bytes(data[:1000])
    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    first.write_bytes(data)
    assert tensor_names(first) == tensor_names(tmp_path / "short.gguf") == set()
    place = struct.pack("<IQIQ", 1, 32, 0, 0)
    second.write_bytes(gguf(*SMALL) + text("cls.weight") + place)
    assert tensor_names(first) == {*names, "cls.weight"}
