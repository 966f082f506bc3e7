"""Tiny models with random weights whose memory is not one plain cache. The vocabulary is bytes.

`mamba` has recurrent layers alone, `lfm2` short convolutions and attention in turn (a hybrid),
`plamo2` Mamba and attention, `rwkv7` a state whose size is not that of Mamba's, `gemma3` every
other layer with a sliding window of `WINDOW` tokens, and `gemma4` besides layers that read the
cells of others: these cannot be cut anywhere.
`minimax-m3` can: it has an indexer, with a cache of its own, that chooses the tokens to look at.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

from tests.models.llama import N_VOCAB, add_vocabulary
from tests.models.mmproj import Floats, Shapes, write_tensors

WINDOW = 64
N_EMBD, N_FF, N_HEAD, N_LAYER = 64, 128, 4, 4
_N_CONV, _N_STATE, _N_STEP = 4, 16, 4


def write_mamba(path: Path) -> Path:
    """Write a model of which nothing but one state a sequence is kept."""
    inner = 2 * N_EMBD
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, N_EMBD), "output_norm.weight": (N_EMBD,)}
    for i in range(N_LAYER):
        layer = {
            "attn_norm.weight": (N_EMBD,),
            "ssm_in.weight": (2 * inner, N_EMBD),
            "ssm_conv1d.weight": (inner, _N_CONV),
            "ssm_conv1d.bias": (inner,),
            "ssm_x.weight": (_N_STEP + 2 * _N_STATE, inner),
            "ssm_dt.weight": (inner, _N_STEP),
            "ssm_dt.bias": (inner,),
            "ssm_a": (inner, _N_STATE),
            "ssm_d": (inner,),
            "ssm_out.weight": (N_EMBD, inner),
        }
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    numbers = {
        "ssm.conv_kernel": _N_CONV,
        "ssm.inner_size": inner,
        "ssm.state_size": _N_STATE,
        "ssm.time_step_rank": _N_STEP,
    }
    return _write(path, "mamba", shapes, numbers, [0] * N_LAYER)


def write_plamo2(path: Path) -> Path:
    """Write a hybrid of attention and Mamba, of which llama.cpp computes one sequence a batch."""
    inner, n_dt = 2 * N_EMBD, 64
    attention = {
        "attn_qkv.weight": (3 * N_EMBD, N_EMBD),
        "attn_q_norm.weight": (N_HEAD, N_EMBD // N_HEAD),
        "attn_k_norm.weight": (N_HEAD, N_EMBD // N_HEAD),
        "attn_output.weight": (N_EMBD, N_EMBD),
    }
    recurrent = {
        "ssm_in.weight": (2 * inner, N_EMBD),
        "ssm_conv1d.weight": (inner, _N_CONV),
        "ssm_x.weight": (n_dt + 2 * _N_STATE, inner),
        "ssm_dt.weight": (_N_STEP, n_dt),
        "ssm_dt.bias": (_N_STEP,),
        "ssm_a": (_N_STEP,),
        "ssm_d": (_N_STEP,),
        "ssm_out.weight": (N_EMBD, inner),
        "ssm_dt_norm": (n_dt,),
        "ssm_b_norm": (_N_STATE,),
        "ssm_c_norm": (_N_STATE,),
    }
    rest = {
        "attn_norm.weight": (N_EMBD,),
        "post_attention_norm": (N_EMBD,),
        "ffn_norm.weight": (N_EMBD,),
        "ffn_up.weight": (2 * N_FF, N_EMBD),
        "ffn_down.weight": (N_EMBD, N_FF),
        "post_ffw_norm": (N_EMBD,),
    }
    n_kv = [N_HEAD, 0]
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, N_EMBD), "output_norm.weight": (N_EMBD,)}
    for i, n in enumerate(n_kv):
        layer = (attention if n else recurrent) | rest
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    numbers = {
        "attention.key_length": N_EMBD // N_HEAD,
        "attention.value_length": N_EMBD // N_HEAD,
        "ssm.conv_kernel": _N_CONV,
        "ssm.inner_size": inner,
        "ssm.state_size": _N_STATE,
        "ssm.time_step_rank": _N_STEP,
        "ssm.group_count": 0,
    }
    return _write(path, "plamo2", shapes, numbers, n_kv)


def write_lfm2(path: Path, *, window: int = 0) -> Path:
    """Write a hybrid: convolutions, whose state is their last tokens, and attention.

    With a `window` its attention sees that many tokens.
    """
    n_kv = [0, N_HEAD] * (N_LAYER // 2)
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, N_EMBD), "token_embd_norm.weight": (N_EMBD,)}
    for i, n in enumerate(n_kv):
        convolution = {
            "shortconv.conv.weight": (N_EMBD, 3),
            "shortconv.in_proj.weight": (3 * N_EMBD, N_EMBD),
            "shortconv.out_proj.weight": (N_EMBD, N_EMBD),
        }
        layer = (_attention() if n else convolution) | _feed_forward()
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    numbers = {"shortconv.l_cache": 3, "attention.sliding_window": window}
    return _write(path, "lfm2", shapes, numbers, n_kv)


def write_gemma3(path: Path) -> Path:
    """Write a model in which every other layer sees the last `WINDOW` tokens alone."""
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, N_EMBD), "output_norm.weight": (N_EMBD,)}
    for i in range(N_LAYER):
        norms = {"post_attention_norm.weight": (N_EMBD,), "post_ffw_norm.weight": (N_EMBD,)}
        layer = _attention() | _feed_forward() | norms
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    numbers = {
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": 2,
        "attention.key_length": N_EMBD // N_HEAD,
        "attention.value_length": N_EMBD // N_HEAD,
    }
    return _write(path, "gemma3", shapes, numbers, [N_HEAD] * N_LAYER)


def write_gemma4(path: Path) -> Path:
    """Write one whose last layers read the cells of earlier ones; sizes differ with the window."""
    n_own, n_layer, n_token = 4, 6, 16
    shapes: Shapes = {
        "token_embd.weight": (N_VOCAB, N_EMBD),
        "output_norm.weight": (N_EMBD,),
        "rope_freqs.weight": (N_EMBD // 4,),
        "per_layer_token_embd.weight": (N_VOCAB, n_token * n_layer),
        "per_layer_model_proj.weight": (n_token * n_layer, N_EMBD),
        "per_layer_proj_norm.weight": (n_token,),
    }
    is_windowed = [True, False] * (n_layer // 2)
    for i in range(n_layer):
        size = N_EMBD // (4 if is_windowed[i] else 2)
        layer = _feed_forward() | {
            "attn_q.weight": (N_HEAD * size, N_EMBD),
            "attn_q_norm.weight": (size,),
            "attn_output.weight": (N_EMBD, N_HEAD * size),
            "post_attention_norm.weight": (N_EMBD,),
            "post_ffw_norm.weight": (N_EMBD,),
            "inp_gate.weight": (n_token, N_EMBD),
            "proj.weight": (N_EMBD, n_token),
            "post_norm.weight": (N_EMBD,),
        }
        if i < n_own:
            layer |= {f"attn_{part}.weight": (2 * size, N_EMBD) for part in "kv"}
            layer["attn_k_norm.weight"] = (size,)
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    sizes = {"attention.key_length": N_EMBD // 2, "attention.value_length": N_EMBD // 2}
    numbers: dict[str, int | list[bool]] = {
        **sizes,
        **{f"{name}_swa": N_EMBD // 4 for name in sizes},
        "rope.dimension_count": N_EMBD // 2,
        "rope.dimension_count_swa": N_EMBD // 4,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": is_windowed,
        "attention.shared_kv_layers": n_layer - n_own,
        "embedding_length_per_layer_input": n_token,
    }
    return _write(path, "gemma4", shapes, numbers, [2] * n_layer)


def write_rwkv7(path: Path) -> Path:
    """Write a model without attention. On a CPU a head has at least 32 values, or none is right."""
    ranks = {"decay": 8, "iclr": 8, "value_residual_mix": 8, "gate": 16}
    norms = ("attn_norm", "attn_norm_2", "time_mix_ln")
    square = (N_EMBD, N_EMBD)
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, N_EMBD)}
    for name in ("token_embd_norm", "output_norm"):
        shapes |= {f"{name}.weight": (N_EMBD,), f"{name}.bias": (N_EMBD,)}
    layer = {
        **{f"{name}.{part}": (N_EMBD,) for name in norms for part in ("weight", "bias")},
        **{f"time_mix_{name}0.weight": (N_EMBD,) for name in "wav"},
        **{f"time_mix_{name}1.weight": (8, N_EMBD) for name in "wav"},
        **{f"time_mix_{name}2.weight": (N_EMBD, 8) for name in "wav"},
        "time_mix_g1.weight": (16, N_EMBD),
        "time_mix_g2.weight": (N_EMBD, 16),
        "time_mix_lerp_fused.weight": (6, 1, 1, N_EMBD),
        **{f"time_mix_{name}.weight": (N_EMBD,) for name in ("k_k", "k_a", "r_k")},
        **{f"time_mix_{name}.weight": square for name in ("key", "value", "receptance", "output")},
        "channel_mix_lerp_k.weight": (1, 1, N_EMBD),
        "channel_mix_key.weight": (N_FF, N_EMBD),
        "channel_mix_value.weight": (N_EMBD, N_FF),
    }
    for i in range(N_LAYER):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    numbers = {f"attention.{name}_lora_rank": rank for name, rank in ranks.items()}
    numbers |= {"wkv.head_size": N_EMBD, "token_shift_count": 2}
    return _write(path, "rwkv7", shapes, numbers, [0] * N_LAYER)


def write_minimax_m3(path: Path) -> Path:
    """Write a model whose layers but the first look at a few blocks of tokens, as told by keys."""
    size, half = N_EMBD // N_HEAD, N_EMBD // 2
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, N_EMBD), "output_norm.weight": (N_EMBD,)}
    for i in range(2):
        layer = _attention() | _feed_forward()
        for name in ("attn_k.weight", "attn_v.weight"):
            layer[name] = (half, N_EMBD)
        if i:
            experts = {
                "gate": (2, N_FF, N_EMBD),
                "up": (2, N_FF, N_EMBD),
                "down": (2, N_EMBD, N_FF),
            }
            for part, shape in experts.items():
                layer |= {f"ffn_{part}_exps.weight": shape, f"ffn_{part}_shexp.weight": shape[1:]}
                del layer[f"ffn_{part}.weight"]
            layer |= {
                "ffn_gate_inp.weight": (2, N_EMBD),
                "exp_probs_b.bias": (2,),
                "indexer.q_proj.weight": (half, N_EMBD),
                "indexer.k_proj.weight": (size, N_EMBD),
                "indexer.q_norm.weight": (size,),
                "indexer.k_norm.weight": (size,),
            }
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    numbers = {
        "leading_dense_block_count": 1,
        "expert_feed_forward_length": N_FF,
        "expert_count": 2,
        "expert_used_count": 1,
        "expert_shared_count": 1,
        "expert_gating_func": 2,
        "rope.dimension_count": size // 2,
        "attention.indexer.head_count": 2,
        "attention.indexer.key_length": size,
        "attention.indexer.block_size": 4,
        "attention.indexer.top_k": 3,
        "attention.indexer.local_blocks": 1,
    }
    return _write(path, "minimax-m3", shapes, numbers, [2, 2])


WRITERS = {
    "mamba": write_mamba,
    "lfm2": write_lfm2,
    "plamo2": write_plamo2,
    "rwkv7": write_rwkv7,
    "gemma3": write_gemma3,
    "gemma4": write_gemma4,
}
"""Of those that cannot be cut anywhere, by the name of the architecture."""


def _attention() -> Shapes:
    square = (N_EMBD, N_EMBD)
    return {
        **{f"attn_{part}.weight": square for part in ("q", "k", "v", "output")},
        "attn_q_norm.weight": (N_EMBD // N_HEAD,),
        "attn_k_norm.weight": (N_EMBD // N_HEAD,),
    }


def _feed_forward() -> Shapes:
    return {
        "attn_norm.weight": (N_EMBD,),
        "ffn_norm.weight": (N_EMBD,),
        "ffn_gate.weight": (N_FF, N_EMBD),
        "ffn_up.weight": (N_FF, N_EMBD),
        "ffn_down.weight": (N_EMBD, N_FF),
    }


def _write(
    path: Path,
    arch: str,
    shapes: Shapes,
    numbers: Mapping[str, int] | Mapping[str, int | list[bool]],
    n_kv: Sequence[int],
) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(f"random {arch}")
    writer.add_context_length(8192)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(len(n_kv))
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(list(n_kv))
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    for name, number in numbers.items():
        if isinstance(number, list):
            writer.add_array(f"{arch}.{name}", number)
        else:
            writer.add_uint32(f"{arch}.{name}", number)
    add_vocabulary(writer)
    # Of its own: by the transposed embeddings each token would be followed by itself.
    shapes = shapes | {"output.weight": (N_VOCAB, N_EMBD)}
    write_tensors(writer, {name: _weights(name, shape) for name, shape in shapes.items()})
    return path


def _weights(name: str, shape: tuple[int, ...]) -> Floats:
    random = np.random.default_rng(sum(name.encode()))
    if "norm" in name or name == "rope_freqs.weight":
        return np.ones(shape, np.float32)
    if name.endswith("ssm_a"):  # how fast each state forgets
        return -np.tile(np.arange(1, shape[-1] + 1, dtype=np.float32), (*shape[:-1], 1))
    scale = 1.0 if name == "token_embd.weight" else 1 / np.sqrt(shape[-1])
    return (random.standard_normal(shape) * scale).astype(np.float32)
