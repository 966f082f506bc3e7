"""Images and sounds in request bodies."""

import base64
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.api.anthropic.messages import plan as plan_message
from gateway.api.fields.media_links import MediaLink
from gateway.api.llamacpp.completion import plan as plan_completion
from gateway.api.openai.chat import plan as plan_chat
from gateway.api.openai.responses.plan import plan as plan_response
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.messages import Delta
from tests.gateway.cards import CARD

SEEING = replace(CARD, media_marker="<M>", has_vision=True)
DATA = base64.b64encode(b"picture").decode()


def image(url: Any = f"data:image/png;base64,{DATA}") -> dict[str, Any]:
    """An OpenAI image part."""
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*parts: Any) -> dict[str, Any]:
    """A chat of one message."""
    return {"messages": [{"role": "user", "content": list(parts)}]}


def test_a_chat_image_stands_where_it_was() -> None:
    body = chat({"type": "text", "text": "What is"}, image(), {"type": "text", "text": "this?"})
    (task,) = plan_chat(body, SEEING).tasks
    assert task.media == (b"picture",)
    assert task.chat is not None
    assert task.chat.messages[0]["content"] == "What is<M>this?"


def test_a_marker_written_by_the_client_is_taken_out() -> None:
    (task,) = plan_chat(chat({"type": "text", "text": "a<M>b"}), SEEING).tasks
    assert task.chat is not None
    assert task.chat.messages[0]["content"] == [{"type": "text", "text": "ab"}]
    body = {"prompt": "a<M>[img-1]b", "image_data": [{"data": DATA, "id": 1}]}
    (native,) = plan_completion(body, SEEING).tasks
    assert native.prompt == "a<M>b"


def test_a_named_image_is_noted_for_fetching() -> None:
    plan = plan_chat(chat(image(), image("HTTPS://a.test/b.png"), image("file://c.png")), SEEING)
    assert plan.tasks[0].media == (b"picture", b"", b"")
    param = "messages[0].content[{}].image_url.url"
    assert plan.links == (
        MediaLink(1, "HTTPS://a.test/b.png", param.format(1), "image"),
        MediaLink(2, "file://c.png", param.format(2), "image"),
    )


def test_a_sound_may_be_named_without_a_format() -> None:
    part = {"type": "input_audio", "input_audio": {"url": "http://a.test/b.wav"}}
    plan = plan_chat(chat(part), replace(SEEING, has_audio=True))
    param = "messages[0].content[0].input_audio.url"
    assert plan.links == (MediaLink(0, "http://a.test/b.wav", param, "audio"),)


def test_the_data_of_a_sound_tell_its_format() -> None:
    for sound in ({"data": DATA}, {"data": DATA, "format": "ogg"}):
        body = chat({"type": "input_audio", "input_audio": sound})
        (task,) = plan_chat(body, replace(SEEING, has_audio=True)).tasks
        assert task.media == (b"picture",)


@pytest.mark.parametrize("bytes_", [b"p", b"pi", b"pic", b"pictures of the sea" * 20])
def test_base64_may_lack_padding_and_have_line_breaks(bytes_: bytes) -> None:
    lines = base64.encodebytes(bytes_).decode()
    for text in (lines, lines.replace("\n", "\r\n"), lines.replace("\n", "").rstrip("=")):
        (task,) = plan_chat(chat(image(text), image(f"data:image/png;base64,{text}")), SEEING).tasks
        assert task.media == (bytes_, bytes_)


@pytest.mark.parametrize("rest", ["A", "A===", "A\n"])
def test_a_last_digit_that_is_no_byte_is_left_out(rest: str) -> None:
    text = base64.b64encode(b"pic").decode()
    (task,) = plan_chat(chat(image(f"data:image/png;base64,{text}{rest}")), SEEING).tasks
    assert task.media == (b"pic",)


def test_a_named_image_of_a_response_is_called_as_its_client_does() -> None:
    part = {"type": "input_image", "image_url": "http://a.test/b.png"}
    body = {"input": [{"role": "user", "content": [part]}]}
    (link,) = plan_response(body, SEEING).links
    assert link.param == "input[0].content[0].image_url"


def test_a_named_image_of_anthropic_is_noted_too() -> None:
    source = {"type": "url", "url": "http://a.test/b.png"}
    body = {"max_tokens": 1, **chat({"type": "image", "source": source})}
    (link,) = plan_message(body, SEEING).links
    assert (link.url, link.param) == (source["url"], "messages[0].content[0].source.url")


def test_image_data_takes_the_place_of_its_mark() -> None:
    other = base64.b64encode(b"other").decode()
    images = [{"data": DATA, "id": 10}, {"data": other, "id": 12}]
    body = {"prompt": "[img-12] and [img-10] and [img-12]", "image_data": images}
    (task,) = plan_completion(body, SEEING).tasks
    assert task.prompt == "<M> and <M> and <M>"
    assert task.media == (b"other", b"picture", b"other")


def test_multimodal_data_belongs_to_its_prompt() -> None:
    prompts = ["plain", {"prompt_string": "see <M>", "multimodal_data": [DATA]}]
    first, second = plan_completion({"prompt": prompts}, SEEING).tasks
    assert (first.media, second.media) == ((), (b"picture",))


@pytest.mark.parametrize(
    "body",
    [
        chat(image("ftp://example.org/a.png")),
        chat(image("data:image/png;base64,***")),
        chat(image("data:image/png,plain")),
        chat(image(None)),
        chat({"type": "media_marker", "text": "<M>"}),
    ],
)
def test_bad_chat_images_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        plan_chat(body, SEEING)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "[img-1]", "image_data": [{"data": DATA, "id": 2}]},
        {"prompt": "[img-1]", "image_data": [{"data": "!", "id": 1}]},
        {"prompt": "[img-1]", "image_data": [{"data": DATA}]},
        {"prompt": "[img-1]", "image_data": {"data": DATA}},
        {"prompt": [1, 2], "image_data": [{"data": DATA, "id": 1}]},
        {"prompt": {"prompt_string": "x", "multimodal_data": "x"}},
    ],
)
def test_bad_image_data_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        plan_completion(body, SEEING)


def test_a_model_that_sees_nothing_says_so() -> None:
    with pytest.raises(TaskError, match="provide the mmproj") as caught:
        plan_chat(chat(image()), CARD)
    assert caught.value.code is ErrorCode.NOT_SUPPORTED


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "[img-1]", "image_data": [{"data": DATA, "id": 1}]},
        {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [DATA]}},
    ],
)
def test_a_prompt_with_an_image_needs_a_model_that_sees(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="model does not support multimodal requests"):
        plan_completion(body, CARD)


def test_a_model_that_hears_nothing_says_so() -> None:
    part = {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}
    with pytest.raises(TaskError, match="audio input is not supported"):
        plan_chat(chat(part), SEEING)


def test_an_image_is_named_by_a_number() -> None:
    body = {"prompt": "[img-1]", "image_data": [{"data": DATA, "id": "1"}]}
    with pytest.raises(InvalidRequest, match="type must be number, but is string") as caught:
        plan_completion(body, SEEING)
    assert caught.value.param == "image_data[0].id"


def test_the_events_of_a_model_that_sees_say_so() -> None:
    for card, told in ((SEEING, True), (CARD, False)):
        reply = plan_completion({"prompt": "x", "stream": True}, card).reply
        frame = reply.delta(0, Delta(text="a"))
        assert orjson.loads(frame.removeprefix(b"data: "))["multimodal"] is told


def test_a_task_knows_which_fields_its_media_came_in() -> None:
    url = f"data:image/png;base64,{DATA}"
    path = "messages[0].content[{}]"
    (task,) = plan_chat(chat({"type": "text", "text": "a"}, image(), image()), SEEING).tasks
    assert task.media_fields == tuple(f"{path.format(i)}.image_url.url" for i in (1, 2))
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    body = {**chat({"type": "image", "source": source}), "max_tokens": 1}
    (task,) = plan_message(body, SEEING).tasks
    assert task.media_fields == (f"{path.format(0)}.source.data",)
    items = [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
    (task,) = plan_response({"input": items}, SEEING).tasks
    assert task.media_fields == ("input[0].content[0].image_url",)
    images = [{"data": DATA, "id": 3}, {"data": DATA, "id": 4}]
    body = {"prompt": "[img-4] [img-3]", "image_data": images}
    (task,) = plan_completion(body, SEEING).tasks
    assert task.media_fields == ("image_data[1].data", "image_data[0].data")
    body = {"prompt": {"prompt_string": "<M>", "multimodal_data": [DATA]}}
    (task,) = plan_completion(body, SEEING).tasks
    assert task.media_fields == ("prompt.multimodal_data[0]",)
