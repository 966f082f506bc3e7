"""Writes a model of any size with random weights and a real vocabulary: for speed, not for sense.

python -m benchmarks.random_model FILE [--gigabytes 4] [--type Q4_0] [--width 4096] [--window 0]
    [--vocabulary FILE]

The layers are Llama 3 8B's (14,336 wide in the middle, 8 of 32 heads for keys and values), as many
as fill the size; vocabulary and chat template are those of the embedded model. With a window they
are Gemma 3's of the same size: five of six see so many tokens, the sixth all of them.
"""

import argparse
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np

from worker.settings.resolve import find_model

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_N_BLOCK = 32
"""Weights that share a scale, in both types."""
_HEAD = 128
_N_TIMES = 3.5
"""The feed-forward part against the width."""
_N_SHARING = 4
"""Query heads of one head of keys and values."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a layer consists of."""

    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    n_layers: int
    window: int = 0
    """Tokens that most layers see; 0: all layers see all."""

    @property
    def head(self) -> int:
        """Values of a head."""
        return self.n_embd // self.n_head

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor with its shape, rows first."""
        n_kv = self.head * self.n_head_kv
        layer = {
            "attn_norm": (self.n_embd,),
            "attn_q": (self.n_embd, self.n_embd),
            "attn_k": (n_kv, self.n_embd),
            "attn_v": (n_kv, self.n_embd),
            "attn_output": (self.n_embd, self.n_embd),
            "ffn_norm": (self.n_embd,),
            "ffn_gate": (self.n_ff, self.n_embd),
            "ffn_up": (self.n_ff, self.n_embd),
            "ffn_down": (self.n_embd, self.n_ff),
        }
        if self.window:
            layer |= dict.fromkeys(("post_attention_norm", "post_ffw_norm"), (self.n_embd,))
            layer |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), (self.head,))
        numbered = itertools.product(range(self.n_layers), layer.items())
        return {
            "token_embd.weight": (self.n_vocab, self.n_embd),
            **{f"blk.{number}.{name}.weight": shape for number, (name, shape) in numbered},
            "output_norm.weight": (self.n_embd,),
        }


def sizes(width: int, n_vocab: int, n_bytes: float, kind: gguf.GGMLQuantizationType) -> Sizes:
    """Choose as many layers as fill `n_bytes`, one at least."""
    n_head = max(_N_SHARING, width // _HEAD)
    one = Sizes(width, int(width * _N_TIMES), n_head, n_head // _N_SHARING, n_vocab, 1)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    weights = {name: int(np.prod(shape)) for name, shape in one.tensors.items()}
    outside = weights["token_embd.weight"]
    layer = sum(weights.values()) - outside
    n_layers = max(1, round((n_bytes * block / block_bytes - outside) / layer))
    return Sizes(one.n_embd, one.n_ff, one.n_head, one.n_head_kv, n_vocab, n_layers)


def write(path: Path, of: Sizes, kind: gguf.GGMLQuantizationType, vocabulary: Path) -> None:
    """Write the file, a tensor at a time."""
    arch = "gemma3" if of.window else "llama"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(f"random {arch}, {of.n_layers} layers of {of.n_embd}")
    writer.add_context_length(131072)
    writer.add_embedding_length(of.n_embd)
    writer.add_feed_forward_length(of.n_ff)
    writer.add_block_count(of.n_layers)
    writer.add_head_count(of.n_head)
    writer.add_head_count_kv(of.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(of.head)
    if of.window:
        writer.add_sliding_window(of.window)
        writer.add_key_length(of.head)
        writer.add_value_length(of.head)
    _copy_vocabulary(writer, vocabulary)
    for name, shape in of.tensors.items():
        stored, dtype = _stored(shape, kind)
        n_bytes = int(np.prod(stored)) * dtype.itemsize
        writer.add_tensor_info(name, stored, dtype, n_bytes, None if len(shape) == 1 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape in of.tensors.items():
        writer.write_tensor_data(_weights(name, shape, kind))
    writer.close()


def vocabulary_size(vocabulary: Path) -> int:
    """Count the tokens of a file."""
    return len(_fields(vocabulary)["tokenizer.ggml.tokens"].data)


@cache
def _fields(path: Path) -> Mapping[str, gguf.ReaderField]:
    """Read the keys of a file once: a second for a vocabulary of this size."""
    return gguf.GGUFReader(path).fields


def _copy_vocabulary(writer: gguf.GGUFWriter, vocabulary: Path) -> None:
    for name, field in _fields(vocabulary).items():
        if name.startswith("tokenizer."):
            sub_type = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)


def _stored(
    shape: tuple[int, ...], kind: gguf.GGMLQuantizationType
) -> tuple[tuple[int, ...], "np.dtype[Any]"]:
    """Return the shape and type of what `_weights` draws."""
    if len(shape) == 1:
        return shape, np.dtype(np.float32)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return (shape[0], shape[1] // block * block_bytes), np.dtype(np.uint8)


def _weights(name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> Array:
    """Draw the same blocks for the same name; norms are ones."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    random = np.random.default_rng(sum(name.encode()))
    n_rows, n_columns = shape
    return _BLOCKS[kind](random, n_rows * n_columns // _N_BLOCK, n_columns**-0.5).reshape(
        n_rows, -1
    )


def _q4_0(random: np.random.Generator, n: int, deviation: float) -> Array:
    return _blocks(random, n, _N_BLOCK // 2, deviation / (16 / 12**0.5))


def _q8_0(random: np.random.Generator, n: int, deviation: float) -> Array:
    return _blocks(random, n, _N_BLOCK, deviation / (256 / 12**0.5))


def _blocks(random: np.random.Generator, n: int, n_bytes: int, scale: float) -> Array:
    """Put a scale, a half float, before the evenly distributed bytes of each block.

    Of half of the blocks the scale is negative: the mean of all weights is zero then. With 4 bits
    it is not otherwise, and the sums of a wide model's layers hardly depend on its prompt.
    """
    blocks = np.empty((n, 2 + n_bytes), np.uint8)
    signs = random.choice(np.array([-1, 1], np.float16), n)
    blocks[:, :2] = (np.float16(scale) * signs).view(np.uint8).reshape(n, 2)
    blocks[:, 2:] = random.integers(0, 256, (n, n_bytes), np.uint8)
    return blocks


_BLOCKS: dict[gguf.GGMLQuantizationType, Callable[[np.random.Generator, int, float], Array]] = {
    gguf.GGMLQuantizationType.Q4_0: _q4_0,
    gguf.GGMLQuantizationType.Q8_0: _q8_0,
}


def main() -> None:
    """Write what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--type", choices=[kind.name for kind in _BLOCKS], default="Q4_0")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--window", type=int, default=0, help="tokens; 0 is none")
    parser.add_argument("--vocabulary", type=Path, help="another file to take it from")
    args = parser.parse_args()
    kind = gguf.GGMLQuantizationType[args.type]
    vocabulary = args.vocabulary or Path(find_model(""))
    of = sizes(args.width, vocabulary_size(vocabulary), args.gigabytes * 1e9, kind)
    of = replace(of, window=args.window)
    write(args.file, of, kind, vocabulary)
    print(f"{args.file}: {args.file.stat().st_size / 1e9:.2f} GB, {of.n_layers} layers")


if __name__ == "__main__":
    main()
