"""The fingerprint follows the weights and what changes a text, and nothing else."""

import dataclasses
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from worker.settings.fingerprint import NEUTRAL, fingerprint, rounding


def model(path: Path, fill: bytes = b"a", size: int = 3 << 20) -> WorkerConfig:
    path.write_bytes(b"GGUF" + fill * (size - 4))
    return WorkerConfig(model=str(path), alias="m")


def test_a_copy_of_the_file_has_the_same_fingerprint(tmp_path: Path) -> None:
    file, other = model(tmp_path / "one.gguf"), model(tmp_path / "other.gguf")
    os.utime(other.model, (1, 1))
    assert fingerprint(file) == fingerprint(other)


def test_other_weights_of_the_same_size_have_another(tmp_path: Path) -> None:
    file = model(tmp_path / "one.gguf")
    path = tmp_path / "other.gguf"
    path.write_bytes(Path(file.model).read_bytes()[: 2 << 20] + b"b" * (1 << 20))
    assert fingerprint(file) != fingerprint(replace(file, model=str(path)))


def test_a_file_that_is_replaced_in_place_has_another(tmp_path: Path) -> None:
    file = model(tmp_path / "one.gguf")
    before = fingerprint(file)
    model(tmp_path / "one.gguf", b"b")
    assert fingerprint(file) != before


def test_all_parts_of_a_split_file_count(tmp_path: Path) -> None:
    file = model(tmp_path / "m-00001-of-00002.gguf")
    model(tmp_path / "m-00002-of-00002.gguf")
    before = fingerprint(file)
    model(tmp_path / "m-00002-of-00002.gguf", b"b")
    assert fingerprint(file) != before


@pytest.mark.parametrize(
    "change",
    [
        {"chat_template": "{{ x }}"},
        {"rope_freq_base": 1e6},
        {"override_kv": ("a=int:1",)},
        {"reasoning_format": "none"},
        {"lora": ("/there/is/none.gguf:0.5",)},
        {"backend": "fake"},
    ],
)
def test_options_that_change_a_text_count(tmp_path: Path, change: dict[str, Any]) -> None:
    file = model(tmp_path / "one.gguf")
    assert fingerprint(replace(file, **change)) != fingerprint(file)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "w-2", "alias": "n"},
        {"n_slots": 8, "n_ctx": 512},
        {"devices": "1", "n_gpu_layers": 0},
        {"cache_type_k": "q8_0"},
        {"hf_token": "secret"},
        {"curve_key_file": "/etc/llamapool/b.key", "gateway_keys": ("/etc/llamapool/keys",)},
        {"embeddings": True, "pooling": "mean", "embd_normalize": 0},
    ],
)
def test_place_size_and_speed_do_not_count(tmp_path: Path, change: dict[str, Any]) -> None:
    file = model(tmp_path / "one.gguf")
    assert fingerprint(replace(file, **change)) == fingerprint(file)


def test_rounding_follows_device_and_batch() -> None:
    config = WorkerConfig()
    assert rounding(config) == rounding(replace(config, name="w-2"))
    assert rounding(config) != rounding(replace(config, n_gpu_layers=0))
    assert rounding(config) != rounding(replace(config, cache_type_k="q8_0"))


def test_every_neutral_key_is_a_key() -> None:
    assert {field.name for field in dataclasses.fields(WorkerConfig)} >= NEUTRAL
