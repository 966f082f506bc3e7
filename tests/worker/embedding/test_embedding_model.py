"""Embeddings, reranking and infill on the real llama.cpp: SmolLM2, and tiny random models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError, ErrorCode, InvalidRequest, TaskError
from protocol.wire.messages import Generate, Infill
from protocol.wire.sampling import SamplingParams
from tests.cores import threads
from tests.models.adapters import write_control_vector, write_lora
from tests.models.bert import CLS, SEP, write_bert
from tests.models.llama import FIM, write_llama
from tests.models.shallow import shallow_path
from tests.models.t5 import write_t5
from tests.worker.conftest import model_path
from tests.worker.embedders import loaded
from tests.worker.prompt.read_task import read_task
from worker.embedding.inputs import InputReader
from worker.engine.backend import BatchRow, EmbeddingPiece
from worker.llama.backend import LlamaBackend
from worker.llama.embedding.context import normalized
from worker.prompt.prompt import PromptReader

pytestmark = pytest.mark.model

TEXTS = ["Hello world", "The cat sat on the mat.", "x"]

Vector = np.ndarray[Any, np.dtype[np.float32]]


def embed(backend: LlamaBackend, texts: list[str], normalize: int = 2) -> list[Vector]:
    """Embed texts in one batch."""
    assert backend.embedder is not None
    reader = InputReader(backend, backend.embedder)
    pieces = [
        EmbeddingPiece(i, 0, reader.text(text), True, normalize) for i, text in enumerate(texts)
    ]
    answers = backend.embedder.embed(pieces)
    return [np.frombuffer(data, np.float32) for data in answers]


def scored(backend: LlamaBackend, query: str, documents: list[str]) -> list[float]:
    """Score pairs in one batch."""
    assert backend.embedder is not None
    reader = InputReader(backend, backend.embedder)
    pairs = [reader.pair(query, document) for document in documents]
    pieces = [EmbeddingPiece(i, 0, pair, True) for i, pair in enumerate(pairs)]
    return [float(np.frombuffer(data, np.float32)[0]) for data in backend.embedder.embed(pieces)]


def test_vectors_are_those_of_llama_cpp_python() -> None:
    import llama_cpp

    reference: Any = llama_cpp.Llama(
        shallow_path(),
        embedding=True,
        pooling_type=1,
        n_ctx=512,
        n_threads=threads(),
        n_gpu_layers=-1,
        verbose=False,
    )
    wanted = [np.array(reference.embed(text, normalize=True)) for text in TEXTS]
    reference.close()
    with loaded(shallow_path(), pooling="mean", flash_attn="off") as (backend, _):
        for text, one, all_at_once in zip(TEXTS, wanted, embed(backend, TEXTS), strict=True):
            assert np.allclose(embed(backend, [text])[0], one, atol=1e-5)
            assert one @ all_at_once > 0.999


SAID_BY_LLAMA_SERVER = {
    "": [-0.017939, -0.003902, -0.005022, 0.020781],
    "lora": [-0.017434, -0.004066, -0.005031, 0.019469],
    "control_vector": [-0.017677, 0.001301, -0.001743, 0.009279],
}
"""How the embedding of "Hello world" begins, by the llama-server of the same commit, -fa off."""


@pytest.mark.parametrize("kind", SAID_BY_LLAMA_SERVER)
@pytest.mark.cpu
def test_adapters_and_control_vectors_reach_the_embeddings(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "adapter.gguf"
    write = write_control_vector if kind == "control_vector" else write_lora
    write(path, n_embd=576, n_layer=30, strength=0.5 if kind == "control_vector" else 0.05)
    config = {kind: (str(path),)} if kind else {}
    with loaded(model_path(), pooling="mean", flash_attn="off", **config) as (backend, embedder):
        for scale in [1.0, 0.0] if kind == "lora" else [1.0]:
            embedder.adapters.use((scale,) * len(backend.adapters.loaded))
            wanted = SAID_BY_LLAMA_SERVER[kind if scale else ""]
            assert np.allclose(embed(backend, ["Hello world"])[0][:4], wanted, atol=2e-5)


def test_generation_goes_on_undisturbed_beside_embeddings() -> None:
    def logits(backend: LlamaBackend, tokens: list[int]) -> bytes:
        backend.decode([BatchRow(0, 0, tokens[:4], False)])
        if backend.embedder is not None:
            embed(backend, TEXTS)
        backend.decode([BatchRow(0, 4, tokens[4:], True)])
        return backend._logits(len(tokens) - 5).tobytes()

    with loaded(shallow_path(), pooling="mean") as (backend, _):
        tokens = backend.tokenize(
            "Once upon a time there was a", add_special=True, parse_special=True
        )
        beside = logits(backend, tokens)
    alone = LlamaBackend(
        WorkerConfig(model=shallow_path(), n_ctx=1024, n_threads=threads(), warmup=False),
        lambda _: None,
    )
    assert logits(alone, tokens) == beside
    alone.close()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "none"])
@pytest.mark.cpu
def test_an_encoder_pools_as_told(tmp_path: Path, pooling: str) -> None:
    path = write_bert(tmp_path / "bert.gguf", pooling="mean")
    with loaded(path, pooling=pooling) as (backend, embedder):
        assert (embedder.pooling, embedder.can_split) == (pooling, False)
        together = embed(backend, TEXTS)
        for text, vector in zip(TEXTS, together, strict=True):
            n_tokens = len(backend.tokenize(text, add_special=True, parse_special=True))
            n_vectors = n_tokens if pooling == "none" else 1
            assert vector.shape == (n_vectors * 32,)
            assert np.allclose(embed(backend, [text])[0], vector, atol=1e-5)
            if pooling != "none":
                assert np.isclose(np.linalg.norm(vector), 1.0, atol=1e-5)


def write_encoder(folder: Path, kind: str) -> Path:
    """Write a model that makes embeddings only; llama.cpp gives a T5's encoder a cache."""
    path = folder / f"{kind}.gguf"
    return write_bert(path, pooling="mean") if kind == "bert" else write_t5(path, has_decoder=False)


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_an_encoder_generates_nothing_and_says_so(tmp_path: Path, kind: str) -> None:
    with loaded(write_encoder(tmp_path, kind)) as (backend, _):
        assert len(embed(backend, TEXTS)) == len(TEXTS)
        assert not backend.card.can_generate
        reader = PromptReader(backend, cuts_long=False)
        with pytest.raises(TaskError) as caught:
            read_task(reader, Generate(prompt="a", params=SamplingParams()))
        assert caught.value.code is ErrorCode.NOT_SUPPORTED


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_an_encoder_without_embeddings_cannot_start(tmp_path: Path, kind: str) -> None:
    path = write_encoder(tmp_path, kind)
    with pytest.raises(ConfigError, match="give --embeddings"):
        LlamaBackend(WorkerConfig(model=str(path), n_threads=1), lambda _: None)


def test_a_diffusion_model_is_not_called_an_encoder(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "llada.gguf", arch="llada")
    with pytest.raises(ConfigError, match="is a diffusion model"):
        LlamaBackend(WorkerConfig(model=str(path), n_threads=1), lambda _: None)


def test_a_model_of_which_llama_cpp_would_read_too_much_makes_no_embeddings(tmp_path: Path) -> None:
    """As of DeepSeek V4: it would end the process."""
    path = str(write_llama(tmp_path / "wide.gguf", n_embd_out=64))
    config = WorkerConfig(model=path, n_threads=1, embeddings=True)
    with pytest.raises(ConfigError, match=r"makes no embeddings of wide\.gguf"):
        LlamaBackend(config, lambda _: None)
    LlamaBackend(replace(config, embeddings=False, reranking=True), lambda _: None).close()
    LlamaBackend(replace(config, embeddings=False), lambda _: None).close()


@pytest.mark.parametrize("embeddings", [False, True])
def test_an_encoder_with_a_decoder_cannot_start(tmp_path: Path, embeddings: bool) -> None:
    """llama.cpp would end the process: a decoder's first batch needs what the encoder made."""
    path = write_t5(tmp_path / "t5.gguf", has_decoder=True)
    config = WorkerConfig(model=str(path), n_threads=1, embeddings=embeddings)
    with pytest.raises(ConfigError, match="an encoder and a decoder"):
        LlamaBackend(config, lambda _: None)


def test_inputs_that_would_abort_llama_cpp_never_reach_it(tmp_path: Path) -> None:
    path = write_bert(tmp_path / "bert.gguf", pooling="mean")
    with loaded(path, n_ubatch=64) as (backend, embedder):
        reader = InputReader(backend, embedder)
        assert len(reader.text("a" * 62)) == 64
        with pytest.raises(InvalidRequest, match=r"input \(65 tokens\) is too large to process"):
            reader.text("a" * 63)
        with pytest.raises(InvalidRequest, match="too large to process"):
            reader.text("a" * 10_000_000)
    with loaded(path, n_ubatch=512) as (backend, embedder):  # positions end before the batch does
        reader = InputReader(backend, embedder)
        assert len(embed(backend, ["a" * 126])) == 1
        with pytest.raises(TaskError) as caught:
            reader.text("a" * 127)
        assert caught.value.code is ErrorCode.CONTEXT_EXCEEDED


@pytest.mark.parametrize("n_ubatch", [100, 127])
def test_any_size_of_a_batch_opens(tmp_path: Path, n_ubatch: int) -> None:
    """llama.cpp aborts where a batch is no multiple of the sequences, with a mean as pooling."""
    path = write_bert(tmp_path / "bert.gguf", pooling="mean")
    with loaded(path, n_ubatch=n_ubatch) as (backend, embedder):
        assert (embedder.n_batch, n_ubatch % embedder.n_seq) == (n_ubatch, 0)
        assert len(embed(backend, ["a" * (n_ubatch - 2)])) == 1


def test_a_long_input_comes_in_pieces_where_the_last_token_counts(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "last.gguf", pooling="last")
    tokens = [3 + i % 200 for i in range(300)]
    with loaded(path, n_ubatch=512) as (_, embedder):
        assert embedder.can_split
        whole = embedder.embed([EmbeddingPiece(0, 0, tokens, True, 2)])[0]
    with loaded(path, n_ubatch=128) as (_, embedder):
        embedder.embed([EmbeddingPiece(5, 0, tokens[:100], False)])
        embedder.embed(
            [EmbeddingPiece(5, 100, tokens[100:200], False), EmbeddingPiece(0, 0, [5, 6], True)]
        )
        pieces = embedder.embed(
            [EmbeddingPiece(1, 0, [9], True), EmbeddingPiece(5, 200, tokens[200:], True, 2)]
        )
        parted = np.frombuffer(pieces[1], np.float32)
        assert np.allclose(np.frombuffer(whole, np.float32), parted, atol=1e-4)
        embedder.embed([EmbeddingPiece(5, 0, tokens[:100], False)])
        embedder.forget(5)
        embedder.embed([EmbeddingPiece(5, 0, tokens[:100], True)])


def test_the_second_context_can_be_filled_again_and_again(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "mean.gguf", pooling="mean")
    with loaded(path, n_ubatch=64) as (_, embedder):
        pieces = [EmbeddingPiece(seq, 0, [7], True) for seq in range(embedder.n_seq)]
        for _ in range(20):
            assert len(embedder.embed(pieces)) == embedder.n_seq == 64


@pytest.mark.cpu
def test_a_reranker_scores_each_pair_alike_alone_and_in_company(tmp_path: Path) -> None:
    path = write_bert(tmp_path / "rank.gguf", pooling="rank", is_reranker=True)
    documents = ["a cat", "dogs and cats", "nothing"]
    with loaded(path, reranking=True, embeddings=False) as (backend, embedder):
        assert (embedder.pooling, embedder.n_embd) == ("rank", 1)
        together = scored(backend, "cats", documents)
        alone = [scored(backend, "cats", [document])[0] for document in documents]
        assert together == pytest.approx(alone, abs=1e-4)
        assert len({round(score, 4) for score in together}) == 3
        pair = InputReader(backend, embedder).pair("a", "b")
        assert (pair[0], pair[2]) == (CLS, SEP)


@pytest.mark.parametrize("is_reranker", [True, False])
def test_a_model_without_a_ranking_head_is_named_at_the_start(
    tmp_path: Path, is_reranker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_bert(tmp_path / "rank.gguf", pooling="mean", is_reranker=is_reranker)
    for fields in ({"reranking": True, "embeddings": False}, {"pooling": "rank"}):
        caplog.clear()
        with loaded(path, **fields):
            warned = [line for line in caplog.records if line.message == "no ranking head"]
            assert len(warned) == (0 if is_reranker else 1)


@pytest.mark.parametrize("suffix_first", [False, True])
def test_an_infill_reads_the_tokens_of_the_model(tmp_path: Path, suffix_first: bool) -> None:
    path = write_llama(tmp_path / "fim.gguf", fim=("fim_pre", "fim_suf", "fim_mid"))
    with loaded(path, embeddings=True, spm_infill=suffix_first) as (backend, _):
        assert backend.card.fim_missing == ()
        message = Generate(infill=Infill(prefix="ab", suffix="<s>"), params=SamplingParams())
        task = read_task(PromptReader(backend, cuts_long=False), message)
        prefix, suffix, middle = (FIM[name] for name in ("fim_pre", "fim_suf", "fim_mid"))
        first, second = (suffix, prefix) if suffix_first else (prefix, suffix)
        assert task.prompt[1] == first
        assert task.prompt.index(second) > 1
        assert task.prompt[-1] == middle
        assert task.prompt.count(1) == 1  # "<s>" of a person is three characters, not BOS
        backend.decode([BatchRow(0, 0, task.prompt, True)])


def test_missing_tokens_are_named(tmp_path: Path) -> None:
    with loaded(write_llama(tmp_path / "half.gguf", fim=("fim_suf",))) as (backend, _):
        assert backend.card.fim_missing == ("prefix", "middle")


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (-1, [3.0, -4.0, 0.0]),
        (0, [24570.0, -32760.0, 0.0]),
        (1, [3 / 7, -4 / 7, 0.0]),
        (2, [0.6, -0.8, 0.0]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3), 0.0]),
        (100_000, [0.75, -1.0, 0.0]),
    ],
)
def test_norms_are_llama_cpps(kind: int, wanted: list[float]) -> None:
    vector = np.array([3.0, -4.0, 0.0], np.float32)
    assert np.allclose(normalized(vector, kind), wanted, rtol=1e-5)
    assert not normalized(np.zeros(3, np.float32), kind).any()
    for odd in (np.nan, np.inf):
        assert not np.isfinite(normalized(np.array([1.0, odd], np.float32), kind)).all()


@pytest.mark.parametrize(("pooling", "found"), [("", "mean"), ("none", "none")])
def test_a_model_without_a_pooling_is_pooled_by_the_mean(
    tmp_path: Path, pooling: str, found: str
) -> None:
    with loaded(write_llama(tmp_path / "plain.gguf"), pooling=pooling) as (_, embedder):
        assert embedder.pooling == found
