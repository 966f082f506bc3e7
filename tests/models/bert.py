"""A BERT with random weights: an encoder without a memory, for embeddings or as a reranker."""

import string
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_EMBD, N_FF, N_HEAD, N_LAYER = 32, 64, 2, 2
N_CTX = 128
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLS, SEP = 2, 3
_WORD = "\u2581"
"""llama.cpp's mark of a word's beginning in a WordPiece vocabulary."""

Shapes = dict[str, tuple[int, ...]]


def write_bert(path: Path, *, pooling: str, is_reranker: bool = False) -> Path:
    """Write an encoder; a reranker has a classification head."""
    tokens = _tokens()
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("random bert")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYER)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType[pooling.upper()])
    _add_vocabulary(writer, tokens)
    for name, shape in (_shapes(len(tokens)) | (_head() if is_reranker else {})).items():
        writer.add_tensor(name, _weights(name, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tokens() -> list[str]:
    letters = string.ascii_lowercase + string.digits + string.punctuation
    return [*_SPECIAL, *(_WORD + letter for letter in letters), *letters]


def _add_vocabulary(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    kinds = [gguf.TokenType.CONTROL] * len(_SPECIAL)
    kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(_SPECIAL))
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(CLS)
    writer.add_eos_token_id(SEP)
    writer.add_sep_token_id(SEP)
    writer.add_mask_token_id(4)


def _shapes(n_vocab: int) -> Shapes:
    shapes: Shapes = {
        "token_embd.weight": (n_vocab, N_EMBD),
        "token_types.weight": (2, N_EMBD),
        "position_embd.weight": (N_CTX, N_EMBD),
        "token_embd_norm.weight": (N_EMBD,),
        "token_embd_norm.bias": (N_EMBD,),
    }
    for layer in range(N_LAYER):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"{block}.{name}.weight"] = (N_EMBD, N_EMBD)
            shapes[f"{block}.{name}.bias"] = (N_EMBD,)
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes[f"{block}.{name}.weight"] = (N_EMBD,)
            shapes[f"{block}.{name}.bias"] = (N_EMBD,)
        shapes[f"{block}.ffn_up.weight"] = (N_FF, N_EMBD)
        shapes[f"{block}.ffn_up.bias"] = (N_FF,)
        shapes[f"{block}.ffn_down.weight"] = (N_EMBD, N_FF)
        shapes[f"{block}.ffn_down.bias"] = (N_EMBD,)
    return shapes


def _head() -> Shapes:
    return {
        "cls.weight": (N_EMBD, N_EMBD),
        "cls.bias": (N_EMBD,),
        "cls.output.weight": (1, N_EMBD),
        "cls.output.bias": (1,),
    }


def _weights(name: str, shape: tuple[int, ...]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    random = np.random.default_rng(sum(name.encode()))
    values = random.standard_normal(shape)
    if len(shape) == 1:
        values = values * 0.02 + (1.0 if name.endswith("norm.weight") else 0.0)
    elif "embd" not in name and "types" not in name:
        values = values / np.sqrt(shape[-1])
    return values.astype(np.float32)
