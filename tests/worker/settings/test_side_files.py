"""Files beside the model: found, made absolute, or refused by the name of their key."""

from pathlib import Path

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.settings.side_files import with_side_files


def test_paths_become_absolute_and_keep_their_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.gguf", "b.gguf", "system.txt"):
        (tmp_path / name).write_text("x")
    worker = with_side_files(
        WorkerConfig(
            slot_save_path=".",
            lora=("a.gguf", "b.gguf:0.5"),
            control_vector=("b.gguf:-1",),
            control_vector_layers=(2, 5),
            system_prompt_file="system.txt",
            lookup_cache_static="static.bin",
            lookup_cache_dynamic="dynamic.bin",
            prompts_dir="prompts",
        )
    )
    assert worker.slot_save_path == str(tmp_path)
    assert worker.lora == (f"{tmp_path}/a.gguf:1.0", f"{tmp_path}/b.gguf:0.5")
    assert worker.control_vector == (f"{tmp_path}/b.gguf:-1.0",)
    assert worker.system_prompt_file == f"{tmp_path}/system.txt"
    assert worker.lookup_cache_static == f"{tmp_path}/static.bin"
    assert worker.lookup_cache_dynamic == f"{tmp_path}/dynamic.bin"
    assert worker.prompts_dir == f"{tmp_path}/prompts"
    assert with_side_files(worker) == worker


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        (WorkerConfig(slot_save_path="nowhere"), "slot_save_path .*nowhere is not a directory"),
        (WorkerConfig(lora=("nowhere.gguf:1",)), "lora .*nowhere.gguf does not exist"),
        (WorkerConfig(control_vector=("nowhere",)), "control_vector .*nowhere does not exist"),
        (
            WorkerConfig(control_vector=(f"{__file__}:nan",)),
            "control_vector .*nan: the scale 'nan' is",
        ),
        (
            WorkerConfig(lora=(f"{__file__}:0,5",)),
            "lora .*: the scale '0,5' is not a finite number",
        ),
        (WorkerConfig(control_vector_layers=(1,)), "control_vector_layers must be two numbers"),
        (WorkerConfig(control_vector_layers=(5, 2)), "control_vector_layers must be two numbers"),
        (WorkerConfig(system_prompt_file="nowhere"), "system_prompt_file .*nowhere"),
    ],
)
def test_what_is_missing_is_named(worker: WorkerConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_side_files(worker)
