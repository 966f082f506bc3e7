"""A tiny Qwen2-VL with random weights: text model and projector.

Its tokens have a place in an image beside their position (M-RoPE), and an image takes fewer
positions than cells. The text model's vocabulary is bytes.
"""

from pathlib import Path

import gguf

from tests.models.llama import N_VOCAB, add_vocabulary
from tests.models.mmproj import (
    N_EMBD,
    N_LAYER,
    PATCH_SIZE,
    Shapes,
    block_shapes,
    open_vision,
    random_weights,
    write_tensors,
)

N_TEXT, N_TEXT_FF, N_TEXT_HEAD, N_TEXT_LAYER = 64, 128, 4, 2
_SECTIONS = [2, 3, 3, 0]
"""Pairs of a head's dimensions that turn with the position, the row, the column, and nothing."""
_MERGED = 4 * N_EMBD
"""Four patches become one embedding."""


def write_qwen2vl(path: Path) -> Path:
    """Write the text model."""
    writer = gguf.GGUFWriter(path, "qwen2vl")
    writer.add_name("random qwen2vl")
    writer.add_context_length(8192)
    writer.add_embedding_length(N_TEXT)
    writer.add_feed_forward_length(N_TEXT_FF)
    writer.add_block_count(N_TEXT_LAYER)
    writer.add_head_count(N_TEXT_HEAD)
    writer.add_head_count_kv(N_TEXT_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_sections(_SECTIONS)
    add_vocabulary(writer)
    square = (N_TEXT, N_TEXT)
    shapes: Shapes = {
        "token_embd.weight": (N_VOCAB, N_TEXT),
        "output_norm.weight": (N_TEXT,),
        "output.weight": (N_VOCAB, N_TEXT),
    }
    for i in range(N_TEXT_LAYER):
        layer: Shapes = {
            "attn_norm.weight": (N_TEXT,),
            **{f"attn_{part}.weight": square for part in ("q", "k", "v", "output")},
            **{f"attn_{part}.bias": (N_TEXT,) for part in ("q", "k", "v")},
            "ffn_norm.weight": (N_TEXT,),
            "ffn_gate.weight": (N_TEXT_FF, N_TEXT),
            "ffn_up.weight": (N_TEXT_FF, N_TEXT),
            "ffn_down.weight": (N_TEXT, N_TEXT_FF),
        }
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    write_tensors(writer, {name: random_weights(name, shape) for name, shape in shapes.items()})
    return path


def write_qwen2vl_projector(path: Path) -> Path:
    """Write the projector."""
    writer = open_vision(path, "qwen2vl_merger", N_TEXT)
    writer.add_bool("clip.use_silu", False)
    shapes: Shapes = {
        "v.patch_embd.weight": (N_EMBD, 3, PATCH_SIZE, PATCH_SIZE),
        "v.patch_embd.weight.1": (N_EMBD, 3, PATCH_SIZE, PATCH_SIZE),
        "v.post_ln.weight": (N_EMBD,),
        "v.post_ln.bias": (N_EMBD,),
        "mm.0.weight": (_MERGED, _MERGED),
        "mm.0.bias": (_MERGED,),
        "mm.2.weight": (N_TEXT, _MERGED),
        "mm.2.bias": (N_TEXT,),
        **block_shapes("v", N_LAYER),
    }
    write_tensors(writer, {name: random_weights(name, shape) for name, shape in shapes.items()})
    return path
