"""Whatever JSON arrives for embeddings, reranking and infill: no 500, no dead worker.

One pool of three tiny random models: an encoder, a reranker, and one that generates.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.e2e.served import Served, serving
from tests.examples import examples
from tests.models.bert import write_bert
from tests.models.llama import FIM, write_llama

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

CONFIG = """
[gateway]
port = 0
[[worker]]
model = "bert.gguf"
embeddings = true
n_ubatch = 64
n_ctx = 256
[[worker]]
model = "rank.gguf"
reranking = true
n_ctx = 256
[[worker]]
model = "llama.gguf"
embeddings = true
n_ubatch = 32
n_ctx = 512
"""

MODELS = st.sampled_from(["bert", "rank", "llama"])
TEXTS = st.text(max_size=80) | st.integers(0, 700).map("a".__mul__)
TOKENS = st.lists(st.integers(-1, 300) | TEXTS, max_size=5)
SCALARS = st.none() | st.booleans() | st.integers(-3, 70) | st.sampled_from([2**63, 0.5]) | TEXTS
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(TEXTS, SCALARS, max_size=2)
INPUTS = TEXTS | TOKENS | st.lists(TEXTS | TOKENS, max_size=4) | VALUES
EMBEDDINGS = st.fixed_dictionaries(
    {"model": MODELS, "input": INPUTS},
    optional={
        "content": INPUTS,
        "encoding_format": st.sampled_from(["float", "base64"]) | VALUES,
        "dimensions": VALUES,
        "embd_normalize": st.integers(-2, 5) | VALUES,
    },
)
RERANKINGS = st.fixed_dictionaries(
    {"model": MODELS, "query": TEXTS | VALUES},
    optional={
        "documents": st.lists(TEXTS, max_size=4) | VALUES,
        "texts": st.lists(TEXTS, max_size=4) | VALUES,
        "top_n": VALUES,
        "return_text": VALUES,
    },
)
INFILLS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama", "bert"]),
        "n_predict": st.integers(0, 3),
        "input_prefix": TEXTS,
        "input_suffix": TEXTS | VALUES,
    },
    optional={
        "prompt": TEXTS | VALUES,
        "input_extra": VALUES
        | st.lists(
            st.fixed_dictionaries({"text": TEXTS}, optional={"filename": TEXTS}), max_size=3
        ),
    },
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The three models behind one gateway."""
    folder: Path = tmp_path_factory.mktemp("models")
    write_bert(folder / "bert.gguf", pooling="mean")
    write_bert(folder / "rank.gguf", pooling="rank", is_reranker=True)
    write_llama(folder / "llama.gguf", pooling="last", fim=tuple(FIM))
    config = folder / "pool.toml"
    config.write_text(CONFIG)
    with serving("--config", str(config)) as served:
        yield served
        assert len(served.client.get("/v1/models").json()["data"]) == 3
        assert not any(" died " in line or "lost" in line for line in served.lines), served.text


BUDGET = examples(
    60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def check(pool: Served, path: str, body: Any) -> None:
    """Ask; the server may refuse but neither break nor stay silent."""
    response = pool.client.post(path, json=body)
    assert response.status_code in (200, 400, 501), (path, body, response.text)
    assert response.status_code == 200 or response.json()["error"]["message"]


@BUDGET
@given(path=st.sampled_from(["/v1/embeddings", "/embeddings", "/embedding"]), body=EMBEDDINGS)
def test_any_embedding_is_answered_or_refused(pool: Served, path: str, body: Any) -> None:
    check(pool, path, body)


@BUDGET
@given(body=RERANKINGS)
def test_any_reranking_is_answered_or_refused(pool: Served, body: Any) -> None:
    check(pool, "/rerank", body)


@BUDGET
@given(body=INFILLS)
def test_any_infill_is_answered_or_refused(pool: Served, body: Any) -> None:
    check(pool, "/infill", body)
