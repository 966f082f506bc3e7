"""The servers that random requests are sent to."""

from collections.abc import Iterator
from pathlib import Path

from tests.cores import threads
from tests.models.adapters import write_lora
from tests.models.bert import write_bert
from tests.models.mmproj import write_mmproj
from tests.models.shallow import N_LAYERS, shallow_path

_N_EMBD = 576
_GAP = {"pre": 7, "suf": 8, "mid": 9, "rep": 3, "sep": 5}
"""Tokens of the default model that have nothing to do with a gap, for `infill`."""


def arguments(name: str, folder: Path, template: str) -> list[str]:
    """Return the options of a server; `folder` is for its files, and the other's."""
    found = ["-a", "smol", "-t", str(threads()), "-fa", "off"]
    kind, _, pooling = name.partition(" ")
    if kind == "bert" or name == "reranker":
        pooling = pooling or "rank"
        path = folder / f"{pooling}.gguf"
        write_bert(path, pooling=pooling, is_reranker=name == "reranker")
        found += ["-m", str(path), "-np", "1", "-c", "128"]
        return [*found, "--reranking" if name == "reranker" else "--embeddings"]
    found += ["-m", shallow_path()]
    if template:
        found += ["--jinja", "--chat-template-file", template]
    return found + list(_rest(name, folder))


def _rest(name: str, folder: Path) -> Iterator[str]:
    match name:
        case "plain":
            yield from (
                "-np",
                "1",
                "-c",
                "2048",
                "--props",
                "--slot-save-path",
                str(folder),
                "--metrics",
            )
            for gap, token in _GAP.items():
                yield from ("--override-kv", f"tokenizer.ggml.fim_{gap}_token_id=int:{token}")
        case "slots":
            yield from ("-np", "2", "-c", "512", "--context-shift", "--slot-save-path", str(folder))
            yield from ("--slots", "--cache-ram", "0", "-sps", "0", "--no-kv-unified")
        case "adapters":
            yield from ("-np", "1", "-c", "512")
            for seed in (1, 2):
                path = folder / f"{seed}.gguf"
                write_lora(path, n_embd=_N_EMBD, n_layer=N_LAYERS, strength=0.2, seed=seed)
                yield from ("--lora", str(path))
        case "seeing":
            write_mmproj(folder / "mmproj.gguf", _N_EMBD)
            yield from ("-np", "1", "-c", "1024", "--mmproj", str(folder / "mmproj.gguf"))
        case _:
            yield from ("-np", "1", "-c", "1024", "--embeddings", "--pooling", name)
