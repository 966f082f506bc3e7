"""A one-layer Llama with random weights and a vocabulary of bytes, with whatever a test needs.

`fim` adds the tokens of an infill, `pooling` makes an embedding model of it, and with another
`arch` (`llada`, a diffusion model) the same tensors are one of that architecture. `n_embd_out` says
that rows of its output have more numbers than they have, as llama.cpp does of DeepSeek V4.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_EMBD, N_FF, N_HEAD = 32, 64, 4
N_CTX = 2048
UNK, BOS, EOS = 0, 1, 2
FIRST_BYTE = 3
SPACE = FIRST_BYTE + 256
"""The mark of a word's beginning, which the tokenizer puts before every text."""
FIM: Mapping[str, int] = {
    "fim_pre": SPACE + 1,
    "fim_suf": SPACE + 2,
    "fim_mid": SPACE + 3,
    "fim_rep": SPACE + 4,
    "fim_sep": SPACE + 5,
}
N_VOCAB = SPACE + 6


def write_llama(
    path: Path,
    *,
    fim: tuple[str, ...] = (),
    pooling: str = "",
    arch: str = "llama",
    n_embd_out: int = 0,
) -> Path:
    """Write the model."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(f"random {arch}")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(1)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    if n_embd_out:
        writer.add_uint32(f"{arch}.embedding_length_out", n_embd_out)
    if pooling:
        writer.add_pooling_type(gguf.PoolingType[pooling.upper()])
    add_vocabulary(writer)
    for name in fim:
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", FIM[name])
    for name, shape in _shapes().items():
        writer.add_tensor(name, _weights(name, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Add a vocabulary of bytes, with the tokens of an infill."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    tokens += [f"<{name}>" for name in FIM]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL]
    kinds += [gguf.TokenType.CONTROL] * len(FIM)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(UNK)


def _shapes() -> dict[str, tuple[int, ...]]:
    square, block = (N_EMBD, N_EMBD), "blk.0"
    return {
        "token_embd.weight": (N_VOCAB, N_EMBD),
        "output_norm.weight": (N_EMBD,),
        "output.weight": (N_VOCAB, N_EMBD),
        f"{block}.attn_norm.weight": (N_EMBD,),
        **{f"{block}.attn_{part}.weight": square for part in ("q", "k", "v", "output")},
        f"{block}.ffn_norm.weight": (N_EMBD,),
        f"{block}.ffn_gate.weight": (N_FF, N_EMBD),
        f"{block}.ffn_up.weight": (N_FF, N_EMBD),
        f"{block}.ffn_down.weight": (N_EMBD, N_FF),
    }


def _weights(name: str, shape: tuple[int, ...]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    random = np.random.default_rng(sum(name.encode()))
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    scale = 1.0 if name == "token_embd.weight" else 1 / np.sqrt(shape[-1])
    return (random.standard_normal(shape) * scale).astype(np.float32)
