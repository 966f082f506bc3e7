"""Bodies of the embeddings endpoints, and the three shapes of their answers."""

import base64
import struct
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.api.fields.embedding import MAX_WITH_MEDIA, EmbeddingPlan, joined, plan_embeddings
from gateway.api.fields.media_links import MediaLink
from gateway.api.llamacpp.embedding import native_answer
from gateway.api.openai.embeddings import embeddings_answer
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.facts import ModelCard
from protocol.wire.side_tasks import Embedded
from tests.gateway.cards import CARD

MEAN = replace(CARD, has_embeddings=True, pooling="mean", n_embd_out=2, embd_normalize=2)
NONE = replace(MEAN, pooling="none")
VECTOR = struct.pack("<2f", 0.5, -1.25)


def embedded(*vectors: bytes, is_pooled: bool = True) -> Embedded:
    """Return a worker's answer with three tokens an input."""
    n_tokens = (3,) * len(vectors)
    return Embedded(vectors=vectors, n_embd=2, n_tokens=n_tokens, is_pooled=is_pooled)


def decoded(value: Any) -> Any:
    """Read an answer as a client does."""
    return orjson.loads(orjson.dumps(value))


def planned(body: dict[str, Any], *, native: bool = False) -> EmbeddingPlan:
    return plan_embeddings(body, MEAN, native=native)


def tasks_of(body: dict[str, Any], card: ModelCard = MEAN) -> list[Any]:
    """Return the inputs and the media of each task."""
    return [(one.inputs, one.media) for one in plan_embeddings(body, card, native=True).tasks]


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([1, "b", 3], ((1, "b", 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a", [1, "b"]], ("a", (1, "b"))),
        ({"prompt_string": "a"}, ("a",)),
        ([{"prompt_string": "a"}, "b"], ("a", "b")),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, ("ab",)),
    ],
)
def test_every_shape_of_input_is_read(value: Any, inputs: Any) -> None:
    assert tasks_of({"input": value}) == [(inputs, ())]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, '"input" or "content" must be provided'),
        ({"input": None}, '"input" or "content" must be provided'),
        ({"input": []}, '"input" must not be empty'),
        ({"input": [[]]}, "Input content cannot be empty"),
        ({"input": 5}, '"input" must be text, tokens, or an array of these'),
        ({"input": ["a", None]}, '"input" must be text, tokens, or an array of these'),
        ({"input": [100]}, "Prompt contains invalid tokens"),
        ({"input": [[-1]]}, "Prompt contains invalid tokens"),
        (
            {"input": {"content": "a"}},
            '"input": an object must have "prompt_string" or "content"',
        ),
        (
            {"input": {"content": [{"type": "file"}]}},
            "Field 'input.content[0].type': file input is not supported yet",
        ),
        (
            {"input": ["a", "b"], "image_data": [{"id": 1, "data": "YQ=="}]},
            "Field 'image_data': is possible only with a single text",
        ),
        (
            {"input": "a", "encoding_format": "hex"},
            "The format to return the embeddings in. Can be either float or base64",
        ),
        (
            {"input": "a", "encoding_format": 5},
            "Field 'encoding_format': type must be string, but is number",
        ),
        (
            {"input": "a", "dimensions": 3},
            "Field 'dimensions': must be 2, the length of this model's embeddings",
        ),
        (
            {"input": "a", "embd_normalize": -2},
            "Field 'embd_normalize': Value must be between -1 <= value <= 2147483647, but got -2",
        ),
    ],
)
def test_bad_bodies_are_refused_in_llama_servers_words(body: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        planned(body)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.message == message


def test_a_server_without_embeddings_says_how_to_start_it() -> None:
    with pytest.raises(TaskError) as caught:
        plan_embeddings({"input": "a"}, CARD, native=True)
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    assert caught.value.message == (
        "This server does not support embeddings. Start it with `--embeddings`"
    )


def test_without_pooling_only_the_native_endpoints_answer() -> None:
    with pytest.raises(TaskError) as caught:
        plan_embeddings({"input": "a"}, NONE, native=False)
    assert caught.value.message == (
        "Pooling type 'none' is not OAI compatible. Please use a different pooling type"
    )
    plan = plan_embeddings({"content": ["a", "b"]}, NONE, native=True)
    answer = native_answer(plan, embedded(VECTOR * 2, VECTOR, is_pooled=False), object_of_one=True)
    assert decoded(answer) == [
        {"index": 0, "embedding": [[0.5, -1.25], [0.5, -1.25]]},
        {"index": 1, "embedding": [[0.5, -1.25]]},
    ]


def test_a_ranking_model_names_the_endpoint_to_use() -> None:
    with pytest.raises(TaskError, match="use /rerank"):
        plan_embeddings({"input": "a"}, replace(MEAN, pooling="rank"), native=True)


def test_the_servers_norm_stands_unless_the_request_says_otherwise() -> None:
    card = replace(MEAN, embd_normalize=1)
    assert plan_embeddings({"input": "a"}, card, native=False).tasks[0].normalize == 1
    body = {"input": "a", "embd_normalize": -1}
    assert plan_embeddings(body, card, native=False).tasks[0].normalize == -1


def test_the_length_that_the_embeddings_have_may_be_asked_for() -> None:
    assert tasks_of({"input": "a", "dimensions": 2}) == [(("a",), ())]


def test_openais_answer_counts_tokens_and_keeps_the_order() -> None:
    plan = planned({"input": ["a", "b"], "model": "asked"})
    other = struct.pack("<2f", 1.0, 2.0)
    assert decoded(embeddings_answer(plan, embedded(VECTOR, other))) == {
        "model": "asked",
        "object": "list",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
        "data": [
            {"embedding": [0.5, -1.25], "index": 0, "object": "embedding"},
            {"embedding": [1.0, 2.0], "index": 1, "object": "embedding"},
        ],
    }


def test_base64_is_little_endian_float32() -> None:
    plan = planned({"input": "a", "encoding_format": "base64"})
    (data,) = decoded(embeddings_answer(plan, embedded(VECTOR)))["data"]
    assert data["encoding_format"] == "base64"
    assert struct.unpack("<2f", base64.b64decode(data["embedding"])) == (0.5, -1.25)


@pytest.mark.parametrize(
    ("body", "native"),
    [({"content": "a"}, False), ({"content": "a"}, True), ({"input": "a"}, True)],
)
def test_vectors_of_llama_servers_shape_are_numbers(body: dict[str, Any], native: bool) -> None:
    plan = planned({**body, "encoding_format": "base64"}, native=native)
    answer = decoded(native_answer(plan, embedded(VECTOR), object_of_one=False))
    assert answer == [{"index": 0, "embedding": [[0.5, -1.25]]}]


@pytest.mark.parametrize(
    ("body", "is_object"),
    [({"content": "a"}, True), ({"content": ["a"]}, False), ({"input": "a"}, False)],
)
def test_one_text_in_content_gets_the_object_of_2024(body: dict[str, Any], is_object: bool) -> None:
    plan = planned(body, native=True)
    one = decoded(native_answer(plan, embedded(VECTOR), object_of_one=True))
    expected = {"index": 0, "embedding": [0.5, -1.25]}
    assert one == (expected if is_object else [{"index": 0, "embedding": [[0.5, -1.25]]}])


def test_content_has_no_openai_shape() -> None:
    assert planned({"content": "a"}).is_native
    assert not planned({"input": "a", "content": "b"}).is_native


SEEING = replace(MEAN, media_marker="<M>", has_vision=True)
IMAGE = {"id": 7, "data": base64.b64encode(b"pixels").decode()}


@pytest.mark.parametrize(
    "body",
    [
        {"content": "Image: [img-7] is a house", "image_data": [IMAGE]},
        {"input": ["Image: [img-7] is a house"], "image_data": [IMAGE]},
        {
            "input": {
                "prompt_string": "Image: <M> is a house",
                "multimodal_data": [IMAGE["data"]],
            }
        },
    ],
)
def test_one_text_may_name_images(body: dict[str, Any]) -> None:
    assert tasks_of(body, SEEING) == [(("Image: <M> is a house",), (b"pixels",))]


SEEN = {"prompt_string": "see <M>", "multimodal_data": [IMAGE["data"]]}
PARTS = {
    "content": [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE['data']}"}},
    ]
}


@pytest.mark.parametrize(
    ("inputs", "tasks"),
    [
        ([PARTS], [(("see <M>",), (b"pixels",))]),
        (
            ["a", [1, 2], SEEN, PARTS, "b"],
            [
                (("a", (1, 2)), ()),
                (("see <M>",), (b"pixels",)),
                (("see <M>",), (b"pixels",)),
                (("b",), ()),
            ],
        ),
        ([{"prompt_string": "see <M>"}, SEEN], [(("see <M>",), ()), (("see <M>",), (b"pixels",))]),
    ],
)
def test_each_of_several_inputs_may_have_images(inputs: list[Any], tasks: list[Any]) -> None:
    assert tasks_of({"input": inputs}, SEEING) == tasks


def test_an_image_of_an_input_may_be_named_by_url() -> None:
    url = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    plan = plan_embeddings({"input": ["a", {"content": [url]}]}, SEEING, native=False)
    link = MediaLink(0, "http://x/y.png", "input.content[0].image_url.url", "image")
    assert plan.links == ((), (link,))


def test_the_inputs_with_images_are_bounded() -> None:
    assert len(tasks_of({"input": [SEEN] * MAX_WITH_MEDIA}, SEEING)) == MAX_WITH_MEDIA
    with pytest.raises(InvalidRequest, match="at most 64 inputs"):
        tasks_of({"input": ["a", *[SEEN] * (MAX_WITH_MEDIA + 1)]}, SEEING)


def test_the_answers_of_all_tasks_become_one() -> None:
    whole = joined([embedded(VECTOR), embedded(VECTOR, VECTOR)])
    assert (whole.vectors, whole.n_tokens, whole.n_embd) == ((VECTOR,) * 3, (3, 3, 3), 2)


def test_a_model_without_a_projector_embeds_no_images() -> None:
    with pytest.raises(TaskError, match="does not support multimodal"):
        planned({"content": "[img-7]", "image_data": [IMAGE]}, native=True)
