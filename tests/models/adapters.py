"""A LoRA adapter and a control vector with random weights, for a model of the llama kind."""

from pathlib import Path

import gguf
import numpy as np

RANK = 4


def write_lora(path: Path, *, n_embd: int, n_layer: int, strength: float, seed: int = 1) -> Path:
    """Write an adapter of the output projections of all layers."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_string("adapter.lora.task_name", "noise")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    noise = np.random.default_rng(seed)
    for layer in range(n_layer):
        name = f"blk.{layer}.attn_output.weight"
        for half, shape in (("lora_a", (RANK, n_embd)), ("lora_b", (n_embd, RANK))):
            weights = noise.standard_normal(shape, np.float32) * strength
            writer.add_tensor(f"{name}.{half}", weights.astype(np.float32))
    return _written(writer, path)


def write_control_vector(path: Path, *, n_embd: int, n_layer: int, strength: float) -> Path:
    """Write a direction for each layer but the first, as llama.cpp's generator does."""
    writer = gguf.GGUFWriter(path, "controlvector")
    writer.add_string("controlvector.model_hint", "llama")
    writer.add_uint32("controlvector.layer_count", n_layer - 1)
    writer.add_array("controlvector.some_list", ["a", "b"])
    noise = np.random.default_rng(2)
    for layer in range(1, n_layer):
        direction = noise.standard_normal(n_embd, np.float32) * strength
        writer.add_tensor(f"direction.{layer}", direction.astype(np.float32))
    return _written(writer, path)


def _written(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
