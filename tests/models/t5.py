"""A T5 with random weights and a vocabulary of bytes: whole, or its encoder alone."""

from pathlib import Path

import gguf

from tests.models.llama import BOS, N_VOCAB, add_vocabulary
from tests.models.mmproj import Shapes, random_weights, write_tensors

N_EMBD, N_FF, N_HEAD, N_LAYER = 32, 64, 2, 1
_N_BUCKETS = 8
_SQUARE = (N_EMBD, N_EMBD)


def write_t5(path: Path, *, has_decoder: bool) -> Path:
    """Write the model."""
    writer = gguf.GGUFWriter(path, "t5" if has_decoder else "t5encoder")
    writer.add_name("random t5")
    writer.add_context_length(512)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYER)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_relative_attn_buckets_count(_N_BUCKETS)
    writer.add_decoder_start_token_id(BOS)
    add_vocabulary(writer)
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, N_EMBD)} | _half("enc")
    if has_decoder:
        shapes |= _half("dec") | {"output.weight": (N_VOCAB, N_EMBD)}
    write_tensors(writer, {name: random_weights(name, shape) for name, shape in shapes.items()})
    return path


def _half(side: str) -> Shapes:
    shapes: Shapes = {f"{side}.output_norm.weight": (N_EMBD,)}
    for i in range(N_LAYER):
        layer: Shapes = {
            "attn_norm.weight": (N_EMBD,),
            "attn_rel_b.weight": (_N_BUCKETS, N_HEAD),
            **{f"attn_{part}.weight": _SQUARE for part in "qkvo"},
            "ffn_norm.weight": (N_EMBD,),
            "ffn_up.weight": (N_FF, N_EMBD),
            "ffn_down.weight": (N_EMBD, N_FF),
        }
        if side == "dec":
            layer["cross_attn_norm.weight"] = (N_EMBD,)
            layer |= {f"cross_attn_{part}.weight": _SQUARE for part in "qkvo"}
        shapes |= {f"{side}.blk.{i}.{name}": shape for name, shape in layer.items()}
    return shapes
