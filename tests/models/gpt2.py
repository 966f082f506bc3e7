"""A one-layer GPT-2 with random weights and a vocabulary of bytes: its positions are a table."""

from pathlib import Path

import gguf

from tests.models.llama import N_VOCAB, add_vocabulary
from tests.models.mmproj import Shapes, random_weights, write_tensors

N_EMBD, N_FF, N_HEAD = 32, 64, 4
N_POSITIONS = 200


def write_gpt2(path: Path) -> Path:
    """Write the model."""
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_name("random gpt2")
    writer.add_context_length(N_POSITIONS)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(1)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_eps(1e-5)
    add_vocabulary(writer)
    shapes: Shapes = {
        "token_embd.weight": (N_VOCAB, N_EMBD),
        "position_embd.weight": (N_POSITIONS, N_EMBD),
        "output.weight": (N_VOCAB, N_EMBD),
        **_with_bias("output_norm", (N_EMBD,)),
        **_with_bias("blk.0.attn_norm", (N_EMBD,)),
        **_with_bias("blk.0.attn_qkv", (3 * N_EMBD, N_EMBD)),
        **_with_bias("blk.0.attn_output", (N_EMBD, N_EMBD)),
        **_with_bias("blk.0.ffn_norm", (N_EMBD,)),
        **_with_bias("blk.0.ffn_up", (N_FF, N_EMBD)),
        **_with_bias("blk.0.ffn_down", (N_EMBD, N_FF)),
    }
    write_tensors(writer, {name: random_weights(name, shape) for name, shape in shapes.items()})
    return path


def _with_bias(name: str, shape: tuple[int, ...]) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
