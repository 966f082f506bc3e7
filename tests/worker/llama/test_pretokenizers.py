"""Long unbroken texts with every kind of pre-tokenizer: none ends the process, or takes for ever.

In a process of its own, for what is tested here is that it lives.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.byte_vocab import write_vocab

PRE_TOKENIZERS = (
    *("deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken", "gpt-4o", "llama-bpe", "gpt-2"),
    *("falcon", "bloom", "viking", "superbpe", "seed-coder", "youtu", "minimax-m2", "afmoe"),
)
SCRIPT = """
import ctypes, sys
import llama_cpp.llama_cpp as lib
from worker.llama.vocabulary import LlamaVocabulary

RUNS = ("a", " ", "!", "aA", "é", "一", "'s", "a ", "\\n", "1")
params = lib.llama_model_default_params()
params.vocab_only = True
for path in sys.argv[1:]:
    model = lib.llama_model_load_from_file(path.encode(), params)
    vocab = LlamaVocabulary(lib.llama_model_get_vocab(model))
    pieces = [vocab._piece(token, special=True) for token in range(vocab.n_tokens)]
    for run in RUNS:
        n = 3_000 if run == "1" else 50_000 // len(run.encode())
        tokens = vocab.tokenize(run * n, add_special=False, parse_special=True)
        found = b"".join([pieces[token] for token in tokens])
        assert found == (run * n).encode(), (path, run)
    words = "some words, and 12 more\\n" * 2_500
    whole = vocab._tokenize(words.encode(), True, True)
    assert vocab.tokenize(words, add_special=True, parse_special=True) == whole, path
"""


@pytest.mark.model
def test_no_run_ends_the_process(tmp_path: Path) -> None:
    paths = [str(write_vocab(tmp_path / f"{pre}.gguf", pre)) for pre in PRE_TOKENIZERS]
    command = [sys.executable, "-c", SCRIPT, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
