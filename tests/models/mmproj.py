"""A vision projector of the LLaVA 1.5 kind with random weights: four embeddings an image."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
Shapes = dict[str, tuple[int, ...]]

N_EMBD, N_FF, N_HEAD, N_LAYER = 32, 64, 2, 2
IMAGE_SIZE, PATCH_SIZE = 28, 14
N_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2


def write_mmproj(path: Path, n_embd_text: int, *, bias: float = 0.0) -> Path:
    """Write a projector for a language model of this embedding length.

    `bias` is added to each value of an embedding.
    """
    writer = open_vision(path, "mlp", n_embd_text)
    writer.add_bool("clip.use_gelu", False)
    tensors = {name: random_weights(name, shape) for name, shape in _shapes(n_embd_text).items()}
    tensors["mm.2.bias"] += np.float32(bias)
    write_tensors(writer, tensors)
    return path


def open_vision(path: Path, kind: str, n_embd_text: int) -> gguf.GGUFWriter:
    """Begin the file of a projector for images."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    for key, value in {
        "image_size": IMAGE_SIZE,
        "patch_size": PATCH_SIZE,
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "projection_dim": n_embd_text,
        "attention.head_count": N_HEAD,
        "block_count": N_LAYER,
    }.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    return writer


def write_tensors(writer: gguf.GGUFWriter, tensors: Mapping[str, Floats]) -> None:
    """Write the file of a projector whose values are set."""
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(n_embd_text: int) -> Shapes:
    own: Shapes = {
        "v.patch_embd.weight": (N_EMBD, 3, PATCH_SIZE, PATCH_SIZE),
        "v.position_embd.weight": (N_PATCHES + 1, N_EMBD),
        "v.class_embd": (N_EMBD,),
        "v.pre_ln.weight": (N_EMBD,),
        "v.pre_ln.bias": (N_EMBD,),
        "mm.0.weight": (n_embd_text, N_EMBD),
        "mm.0.bias": (n_embd_text,),
        "mm.2.weight": (n_embd_text, n_embd_text),
        "mm.2.bias": (n_embd_text,),
    }
    return own | block_shapes("v", N_LAYER)


def block_shapes(encoder: str, n_layer: int, *, has_key_bias: bool = True) -> Shapes:
    """Return the tensors of an encoder's layers; its tensors' names begin with `encoder`."""
    shapes: Shapes = {}
    for layer in range(n_layer):
        block = f"{encoder}.blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            shapes[f"{block}.{name}.weight"] = (N_EMBD, N_EMBD)
            if has_key_bias or name != "attn_k":
                shapes[f"{block}.{name}.bias"] = (N_EMBD,)
        for name in ("ln1", "ln2"):
            shapes |= {f"{block}.{name}.weight": (N_EMBD,), f"{block}.{name}.bias": (N_EMBD,)}
        shapes |= {
            f"{block}.ffn_up.weight": (N_FF, N_EMBD),
            f"{block}.ffn_up.bias": (N_FF,),
            f"{block}.ffn_down.weight": (N_EMBD, N_FF),
            f"{block}.ffn_down.bias": (N_EMBD,),
        }
    return shapes


def random_weights(name: str, shape: tuple[int, ...]) -> Floats:
    random = np.random.default_rng(sum(name.encode()))
    values = random.standard_normal(shape)
    if len(shape) == 1:
        values = values * 0.02 + (1.0 if name.endswith("weight") else 0.0)
    else:
        values = values / np.sqrt(shape[-1])
    return values.astype(np.float32)
