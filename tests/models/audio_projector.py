"""A sound projector of the Ultravox kind with random weights: 150 embeddings for 30 seconds."""

from pathlib import Path

import gguf

from tests.models.mmproj import (
    N_EMBD,
    N_FF,
    N_HEAD,
    Shapes,
    block_shapes,
    random_weights,
    write_tensors,
)

N_LAYER = 1
N_MEL, N_POS, STACK, N_HIDDEN = 80, 1500, 10, 32


def write_audio_projector(path: Path, n_embd_text: int) -> Path:
    """Write a projector for a language model of this embedding length."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", "ultravox")
    for key, value in {
        "num_mel_bins": N_MEL,
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "projection_dim": n_embd_text,
        "attention.head_count": N_HEAD,
        "block_count": N_LAYER,
        "projector.stack_factor": STACK,
    }.items():
        writer.add_uint32(f"clip.audio.{key}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    shapes = _shapes(n_embd_text)
    write_tensors(writer, {name: random_weights(name, shape) for name, shape in shapes.items()})
    return path


def _shapes(n_embd_text: int) -> Shapes:
    own: Shapes = {
        "a.conv1d.1.weight": (N_EMBD, N_MEL, 3),
        "a.conv1d.1.bias": (N_EMBD, 1),
        "a.conv1d.2.weight": (N_EMBD, N_EMBD, 3),
        "a.conv1d.2.bias": (N_EMBD, 1),
        "a.position_embd.weight": (N_POS, N_EMBD),
        "a.post_ln.weight": (N_EMBD,),
        "a.post_ln.bias": (N_EMBD,),
        "mm.a.norm_pre.weight": (N_EMBD * STACK,),
        "mm.a.mlp.1.weight": (2 * N_HIDDEN, N_EMBD * STACK),
        "mm.a.norm_mid.weight": (N_HIDDEN,),
        "mm.a.mlp.2.weight": (n_embd_text, N_HIDDEN),
    }
    # Whisper's keys have no bias.
    return own | block_shapes("a", N_LAYER, has_key_bias=False)
