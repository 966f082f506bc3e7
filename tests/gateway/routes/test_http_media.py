"""Requests that only name their images: the gateway fetches them, within what it is allowed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protocol.config.limits import LimitsConfig
from protocol.wire.messages import Generate
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running, until
from tests.gateway.media.test_fetch import IMAGE, OK, PNG, serving

SEEING = FakeOptions(media_marker="<M>")


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*urls: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [image(url) for url in urls]}], **fields}


def media_of(gateway: Running) -> list[tuple[bytes, ...]]:
    (worker,) = gateway.workers
    return [one.media for one in worker.received if isinstance(one, Generate)]


async def test_named_images_reach_the_worker_in_their_places(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"b")
    async with (
        serving(IMAGE) as server,
        running(tmp_path, media_url_allow=("127.0.0.1:*",), media_path=str(tmp_path)) as gateway,
    ):
        await gateway.add_worker(SEEING)
        url = f"http://127.0.0.1:{server.port}/a.png"
        body = chat("file://b.png", url, "data:image/png;base64,AA==", url, n=2)
        response = await gateway.post("/v1/chat/completions", body)
        assert response.status_code == 200, response.text
        assert media_of(gateway) == [(b"b", PNG, b"\0", PNG)] * 2
        assert len(server.asked) == 1


async def test_images_are_fetched_at_once(tmp_path: Path) -> None:
    n_waiting, all_wait = 0, asyncio.Event()

    async def meet(writer: asyncio.StreamWriter) -> None:
        nonlocal n_waiting
        n_waiting += 1
        if n_waiting == 3:
            all_wait.set()
        await all_wait.wait()
        writer.write(IMAGE)

    async with (
        serving(meet) as server,
        running(tmp_path, media_url_allow=("127.0.0.1:*",)) as gateway,
    ):
        await gateway.add_worker(SEEING)
        urls = [f"http://127.0.0.1:{server.port}/{i}" for i in range(3)]
        response = await gateway.post("/v1/chat/completions", chat(*urls))
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "/v1/chat/completions",
            chat("http://a.test/b.png", stream=True),
            "messages[0].content[0].image_url.url",
        ),
        (
            "/v1/responses",
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_image", "image_url": "https://a.test/b"}],
                    }
                ]
            },
            "input[0].content[0].image_url",
        ),
    ],
)
async def test_nothing_is_fetched_unless_that_is_allowed(
    tmp_path: Path, path: str, body: dict[str, Any], param: str
) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker(SEEING)
        response = await gateway.post(path, body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == param
        assert "--media-url-allow" in error["message"]
        assert media_of(gateway) == []


async def test_no_file_is_read_unless_that_is_allowed(tmp_path: Path) -> None:
    async with running(tmp_path, media_url_allow=("*",)) as gateway:
        await gateway.add_worker(SEEING)
        response = await gateway.post("/v1/chat/completions", chat("file:///etc/passwd"))
        assert response.status_code == 400
        assert "--media-path" in response.json()["error"]["message"]


async def test_a_model_that_sees_nothing_has_nothing_fetched(tmp_path: Path) -> None:
    async with (
        serving(IMAGE) as server,
        running(tmp_path, media_url_allow=("127.0.0.1:*",)) as gateway,
    ):
        await gateway.add_worker()
        body = chat(f"http://127.0.0.1:{server.port}/")
        assert (await gateway.post("/v1/chat/completions", body)).status_code == 501
        assert server.asked == []


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/chat/completions/input_tokens"])
async def test_images_are_counted_with_the_words(tmp_path: Path, path: str) -> None:
    (tmp_path / "b.png").write_bytes(b"four")
    async with running(tmp_path, media_path=str(tmp_path)) as gateway:
        await gateway.add_worker(SEEING)
        source = {"type": "url", "url": "file://b.png"}
        part = {"type": "image", "source": source} if "messages" in path else image("file://b.png")
        body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
        assert (await gateway.post(path, body)).json()["input_tokens"] == 1 + len(b"four")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/embeddings"])
async def test_a_fetch_ends_with_the_time_of_its_request(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.origin.refusal_pause.PAUSE_S", 0.01)

    n_given_up = 0

    async def never(writer: asyncio.StreamWriter) -> None:
        nonlocal n_given_up
        writer.write(OK)
        while not writer.is_closing():
            writer.write(b"x-slow: 1\r\n")
            await asyncio.sleep(0.02)
        n_given_up += 1

    options = FakeOptions(media_marker="<M>", pooling="mean" if "embed" in path else "none")
    async with (
        serving(never) as server,
        running(tmp_path, media_url_allow=("127.0.0.1:*",)) as gateway,
    ):
        await gateway.add_worker(options)
        url = f"http://127.0.0.1:{server.port}/"
        body = {"input": [{"content": [image(url)]}]} if "embed" in path else chat(url)
        for header in ({"x-request-timeout": "0.1"}, {"x-slo-ttft-ms": "100"}):
            asked = gateway.post(path, body, headers=header)
            response = await asyncio.wait_for(asked, 5)
            assert response.status_code == 429, response.text
            assert next(iter(header)) in response.json()["error"]["message"]
        await until(lambda: n_given_up == len(server.asked) == 2)


async def test_a_wrong_time_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    async with (
        serving(IMAGE) as server,
        running(tmp_path, media_url_allow=("127.0.0.1:*",)) as gateway,
    ):
        await gateway.add_worker(SEEING)
        refused = await gateway.post(
            "/v1/chat/completions/input_tokens",
            chat(f"http://127.0.0.1:{server.port}/"),
            headers={"x-request-timeout": "soon"},
        )
        assert refused.status_code == 400, refused.text
        assert not server.asked


async def test_what_was_fetched_counts_as_a_part_of_the_body(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(bytes(700_000))
    limits = LimitsConfig(bodies_mib=1)
    async with running(tmp_path, media_path=str(tmp_path), limits=limits) as gateway:
        worker = await gateway.add_worker(
            FakeOptions(media_marker="<M>", free_running=False, n_slots=2)
        )
        body = chat("file://b.png")
        first = asyncio.ensure_future(gateway.post("/v1/chat/completions", body))
        await until(lambda: bool(worker.engine.waiting))
        refused = await gateway.post("/v1/chat/completions", body)
        assert refused.status_code == 503, refused.text
        assert "too many request bodies" in refused.json()["error"]["message"]
        first.cancel()
        await until(lambda: bool(worker.engine.cancelled))
