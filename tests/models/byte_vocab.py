"""A vocabulary of bytes without a model, for whatever pre-tokenizer a test names."""

from pathlib import Path

import gguf


def _letters() -> list[str]:
    """Return GPT-2's letter for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def write_vocab(path: Path, pre: str) -> Path:
    """Write a file that can be loaded with `vocab_only`."""
    letters = _letters()
    a = letters[ord("a")]
    merges = [f"{a * n} {a * n}" for n in (1, 2, 4)]
    tokens = [*letters, *(merge.replace(" ", "") for merge in merges), "<|end|>"]
    end = len(tokens) - 1
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * end + [gguf.TokenType.CONTROL])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
