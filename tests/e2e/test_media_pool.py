"""Images through the pool: the texts are llama-server's for the same random projector."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.served import Served, serving
from tests.models.mmproj import write_mmproj
from tests.models.shallow import shallow_path
from tests.worker.engine.media.test_media import png

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

IMAGE = base64.b64encode(png(40, 30)).decode()
NATIVE = " a lot of people who are just trying to make a living off of the planet, but they're"
CHAT = 'The "N" in "NFC" stands for National Football Association. It\'s a nickname used'


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two workers of one model that see."""
    folder = tmp_path_factory.mktemp("seeing twice")
    write_mmproj(folder / "mmproj.gguf", 576)
    config = folder / "pool.toml"
    config.write_text(
        "[gateway]\nport = 0\n"
        f'[[worker]]\nmodel = "{shallow_path()}"\nmmproj = "mmproj.gguf"\ncount = 2\nn_ctx = 512\n'
    )
    with serving("--config", str(config)) as served:
        yield served


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One worker that sees."""
    folder = tmp_path_factory.mktemp("seeing")
    write_mmproj(folder / "mmproj.gguf", 576)
    (folder / "media" / "pictures").mkdir(parents=True)
    (folder / "media" / "pictures" / "small.png").write_bytes(png(40, 30))
    config = folder / "pool.toml"
    config.write_text(
        '[gateway]\nport = 0\nmedia_path = "media"\n'
        '[[worker]]\nmmproj = "mmproj.gguf"\nn_ctx = 1024\nembeddings = true\n'
    )
    with serving("--config", str(config)) as served:
        yield served
        assert "died" not in served.text


def complete(pool: Served, prompt: Any, **body: Any) -> Any:
    """Complete greedily."""
    fields = {"prompt": prompt, "n_predict": 20, "temperature": 0} | body
    return pool.client.post("/completion", json=fields).json()


def test_each_worker_of_a_model_takes_images(two_workers: Served) -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    answers = [two_workers.client.post("/v1/chat/completions", json=body) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 6
    assert len({answer.headers["x-llamapool-worker"] for answer in answers}) == 2


def test_native_prompt_with_marker_gives_llama_servers_text(pool: Served) -> None:
    marker = pool.client.get("/props").json()["media_marker"]
    prompt = {"prompt_string": f"Look {marker} at it: I see", "multimodal_data": [IMAGE]}
    answer = complete(pool, prompt)
    assert answer["content"] == NATIVE
    assert answer["prompt"] == "Look  at it: I see"
    assert answer["tokens_evaluated"] == 11


@pytest.mark.cpu
def test_the_seeds_image_data_gives_the_same_and_is_cached(pool: Served) -> None:
    body = {"image_data": [{"id": 4, "data": IMAGE}], "id_slot": 0}
    assert complete(pool, "Look [img-4] at it: I see", **body)["content"] == NATIVE
    again = complete(pool, "Look [img-4] at it: I see", **body)
    assert again["content"] == NATIVE
    assert again["timings"]["cache_n"] == 10


@pytest.mark.cpu
def test_chat_with_image_url_gives_llama_servers_text(pool: Served) -> None:
    parts = [
        {"type": "text", "text": "What is"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
        {"type": "text", "text": "this?"},
    ]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 20, "temperature": 0}
    answer = pool.client.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == CHAT
    assert answer["usage"]["prompt_tokens"] == 38


@pytest.mark.parametrize("path", ["/v1/chat/completions/input_tokens", "/v1/messages/count_tokens"])
def test_a_count_tells_what_the_answer_will_tell(pool: Served, path: str) -> None:
    image: dict[str, Any] = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{IMAGE}"},
    }
    if "messages" in path:
        source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
        image = {"type": "image", "source": source}
    parts = [{"type": "text", "text": "What is"}, image, {"type": "text", "text": "this?"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 20}
    assert pool.client.post(path, json=body).json()["input_tokens"] == 38


@pytest.mark.cpu
def test_an_image_is_read_from_the_folder_of_files(pool: Served) -> None:
    image = {"type": "image_url", "image_url": {"url": "file://pictures/small.png"}}
    parts = [{"type": "text", "text": "What is"}, image, {"type": "text", "text": "this?"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 20, "temperature": 0}
    answer = pool.client.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == CHAT


def test_what_ends_llama_server_is_refused(pool: Served) -> None:
    """A prompt that ends with an image kills the real server of this commit."""
    error = complete(pool, "Look [img-1]", image_data=[{"id": 1, "data": IMAGE}])["error"]
    assert (error["code"], error["message"]) == (
        400,
        "a prompt must not end with an image or a sound",
    )


def test_a_broken_image_is_told_by_the_clients_own_field(pool: Served) -> None:
    def error(path: str, **body: Any) -> tuple[str, str]:
        answer = pool.client.post(path, json={"max_tokens": 1, **body})
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]["message"], answer.json()["error"]["param"]

    broken, words = base64.b64encode(b"no picture").decode(), "Failed to load image or audio file"
    urls = [f"data:image/png;base64,{data}" for data in (IMAGE, broken)]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}]
    field = "messages[0].content[1].image_url.url"
    for path in ("/v1/chat/completions", "/v1/chat/completions/input_tokens"):
        assert error(path, messages=messages) == (words, field)
    images = [{"id": 1, "data": broken}]
    field = "image_data[0].data"
    assert error("/completion", prompt="[img-1] x", image_data=images) == (words, field)


def test_models_and_props_say_that_it_sees(pool: Served) -> None:
    assert pool.client.get("/props").json()["modalities"]["vision"] is True
    model = pool.client.get("/v1/models").json()["data"][0]
    assert model["architecture"]["input_modalities"] == ["text", "image"]


def test_an_image_has_an_embedding(pool: Served) -> None:
    other = base64.b64encode(png(40, 30, shade=200)).decode()

    def embedded(image: str, path: str = "/embedding") -> list[float]:
        body = {"content": "A picture: [img-21].", "image_data": [{"data": image, "id": 21}]}
        answer = pool.client.post(path, json=body).json()
        found = (answer if isinstance(answer, dict) else answer[0])["embedding"]
        vector: list[float] = found if path == "/embedding" else found[0]
        return vector

    once, again = embedded(IMAGE), embedded(IMAGE, "/embeddings")
    assert once == pytest.approx(again)
    assert sum(value * value for value in once) == pytest.approx(1.0)
    assert embedded(other) != pytest.approx(once)
    plain = pool.client.post("/embedding", json={"content": "A picture."}).json()["embedding"]
    assert len(plain) == len(once)


def test_inputs_with_and_without_images_share_a_request(pool: Served) -> None:
    marker = pool.client.get("/props").json()["media_marker"]
    seen = {"prompt_string": f"A picture: {marker}.", "multimodal_data": [IMAGE]}
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    said = [{"type": "text", "text": text} for text in ("A picture: ", ".")]
    parts = {"content": [said[0], url, said[1]]}
    body = {"input": ["A picture: .", seen, parts, "A picture: ."]}
    found = pool.client.post("/v1/embeddings", json=body).json()["data"]
    plain, once, again, last = (one["embedding"] for one in found)
    assert [one["index"] for one in found] == [0, 1, 2, 3]
    assert once == pytest.approx(again)
    assert plain == pytest.approx(last)
    assert plain != pytest.approx(once)
