"""Embeddings, reranking and infill over HTTP, asked by hand and by the official client."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocol.wire import messages as m
from protocol.wire.side_tasks import Embed
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running, until
from tests.vendors import openai


@pytest.fixture
async def embedding(tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway with one worker that makes embeddings of two numbers."""
    async with running(tmp_path) as gateway:
        await gateway.add_worker(FakeOptions(pooling="mean"))
        yield gateway


@pytest.mark.slow
async def test_the_official_client_reads_floats_and_its_own_base64(embedding: Running) -> None:
    # Not strict: its base64, asked for by default, is no list of numbers until it has read it.
    async with openai.AsyncOpenAI(base_url=f"{embedding.url}/v1", api_key="none") as sdk:
        asked = await sdk.embeddings.create(model="any", input=["abc", "de"])
        assert [one.embedding for one in asked.data] == [[3.0, 0.5], [2.0, 0.5]]
        plain = await sdk.embeddings.create(model="any", input="abc", encoding_format="float")
        assert plain.data[0].embedding == [3.0, 0.5]
        assert plain.usage.prompt_tokens == plain.usage.total_tokens == 1


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/embedding", {"content": "abc"}, {"index": 0, "embedding": [3.0, 0.5]}),
        ("/embeddings", {"content": "abc"}, [{"index": 0, "embedding": [[3.0, 0.5]]}]),
        ("/v1/embeddings", {"content": "abc"}, [{"index": 0, "embedding": [[3.0, 0.5]]}]),
    ],
)
async def test_each_endpoint_speaks_its_shape(
    embedding: Running, path: str, body: object, answer: object
) -> None:
    response = await embedding.post(path, body)
    assert response.json() == answer
    assert response.headers["content-type"].startswith("application/json")


async def test_a_large_answer_is_whole(embedding: Running) -> None:
    response = await embedding.post("/v1/embeddings", {"input": ["a"] * 8000})
    assert len(response.json()["data"]) == 8000


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
async def test_documents_are_ranked_under_every_name(tmp_path: Path, path: str) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker(FakeOptions(pooling="rank"))
        response = await gateway.post(path, {"query": "q", "documents": ["a", "abc", "ab"]})
        assert [one["index"] for one in response.json()["results"]] == [1, 2, 0]


async def test_what_the_server_was_not_started_for_is_501(gateway: Running) -> None:
    for path, body, flag in (
        ("/v1/embeddings", {"input": "a"}, "--embeddings"),
        ("/embedding", {"content": "a"}, "--embeddings"),
        ("/rerank", {"query": "q", "documents": ["a"]}, "--reranking"),
    ):
        response = await gateway.post(path, body)
        assert response.status_code == 501
        assert f"Start it with `{flag}`" in response.json()["error"]["message"]
        assert response.headers["x-should-retry"] == "false"


async def test_an_infill_is_answered_and_streamed_as_a_completion(gateway: Running) -> None:
    body = {"input_prefix": "one", "input_suffix": "two", "prompt": "three four"}
    response = await gateway.post("/infill", body)
    assert response.status_code == 200
    assert response.json()["stop"] is True
    events = await gateway.events("/infill", body)
    assert len(events) > 1


async def test_a_client_that_leaves_ends_its_embeddings(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(FakeOptions(pooling="mean", free_running=False))
        asking = asyncio.create_task(gateway.post("/v1/embeddings", {"input": "a"}))
        await worker.got(Embed)
        asking.cancel()
        await worker.got(m.Cancel)
        await until(lambda: not worker.engine.running)
        await gateway.idle()
