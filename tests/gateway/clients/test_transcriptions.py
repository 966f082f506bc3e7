"""/v1/audio/transcriptions: of a form becomes the chat that llama-server makes of it."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from protocol.config.limits import LimitsConfig
from protocol.wire.messages import Generate
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running
from tests.vendors import openai

HEARING = FakeOptions(media_marker="<M>", has_audio=True)
PATH = "/v1/audio/transcriptions"
SOUND = b"RIFF\0\xff"
NOTHING: Mapping[str, str] = {}
USAGE = {
    "type": "tokens",
    "input_tokens": 4,
    "output_tokens": 4,
    "total_tokens": 8,
    "input_tokens_details": {"cached_tokens": 0},
}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway whose worker takes sounds."""
    async with running(tmp_path) as found:
        await found.add_worker(HEARING)
        yield found


async def transcribe(
    gateway: Running, fields: Mapping[str, str] = NOTHING, sound: bytes = SOUND
) -> httpx.Response:
    files = {"file": ("a.wav", sound)}
    return await gateway.client.post(PATH, data=fields, files=files)


def tasks(gateway: Running) -> list[Generate]:
    (worker,) = gateway.workers
    return [message for message in worker.received if isinstance(message, Generate)]


async def test_the_sound_and_an_instruction_become_a_chat(gateway: Running) -> None:
    answer = await transcribe(gateway, {"language": "de"})
    text = "Transcribe audio to text (language: de)<M>"
    assert answer.json() == {
        "type": "transcript.text.done",
        "text": text,
        "usage": USAGE | {"input_tokens": 6, "output_tokens": 6, "total_tokens": 12},
    }
    (task,) = tasks(gateway)
    assert task.chat is not None
    assert list(task.chat.messages) == [{"role": "user", "content": text}]
    assert (task.media, task.media_fields) == ((SOUND,), ("file",))


async def test_a_stream_has_deltas_and_the_whole_text_at_its_end(gateway: Running) -> None:
    answer = await transcribe(gateway, {"stream": "true", "prompt": "one two"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, end = [line for line in answer.text.split("\n\n") if line.startswith("data")]
    read = [orjson.loads(event.removeprefix("data: ")) for event in events]
    assert end == "data: [DONE]"
    assert [event["type"] for event in read] == ["transcript.text.delta"] * 2 + [
        "transcript.text.done"
    ]
    assert "".join(event["delta"] for event in read[:-1]) == read[-1]["text"] == "one two<M>"


async def test_fields_of_the_form_are_those_of_a_chat(gateway: Running) -> None:
    fields = {"temperature": "0.25", "max_tokens": "3", "seed": "7", "top_k": "5", "stop": "x"}
    await transcribe(gateway, fields | {"json_schema": '{"type": "string"}'})
    chat, params = tasks(gateway)[0].chat, tasks(gateway)[0].params
    assert chat is not None
    assert chat.schema == '{"type":"string"}'
    assert (params.temperature, params.n_predict, params.seed, params.top_k) == (0.25, 3, 7, 5)
    assert params.stop == ("x",)


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"response_format": "srt"}, "Only 'json' response_format is supported", "response_format"),
        ({"timestamp_granularities[]": "word"}, "times in a transcript", "timestamp_granularities"),
        ({"include[]": "logprobs"}, "log probabilities", "include"),
        ({"logprobs": "true"}, "log probabilities", "logprobs"),
        ({"tools": "[{}]"}, "calls no tools", "tools"),
        ({"json_schema": "words"}, "json_schema", "json_schema"),
        ({"n": "2"}, "Value must be between 1 <= value <= 1", "n"),
        ({"max_tokens": "many"}, "type must be number, but is string", "max_tokens"),
        ({"stream": "yes"}, "type must be boolean", "stream"),
        ({"language": "x" * 300}, "at most 256 characters", "language"),
        ({"prompt": "x" * 10_000_000}, "exceed the available context size", "prompt"),
    ],
)
async def test_a_wrong_field_is_named(
    gateway: Running, fields: dict[str, str], words: str, param: str
) -> None:
    answer = await transcribe(gateway, fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], words in error["message"]) == (param, True), error


async def test_there_must_be_one_sound(gateway: Running) -> None:
    assert (await transcribe(gateway, sound=b"")).json()["error"]["param"] == "file"
    two = await gateway.client.post(PATH, files=[("file", ("a.wav", SOUND))] * 2)
    assert two.json()["error"]["message"] == "Field 'file': must be one file"
    for form in ({"files": {"other": SOUND}}, {"data": {"file": "text"}}):
        more: Any = form if "files" in form else form | {"files": {"other": SOUND}}
        answer = await gateway.client.post(PATH, **more)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "No input file found for transcription"
    plain = await gateway.post(PATH, {"file": "text"})
    assert plain.status_code == 400
    assert "multipart/form-data" in plain.json()["error"]["message"]


@pytest.mark.parametrize("name", ["prompt", "language", "json_schema", "temperature", "model"])
async def test_a_file_where_a_value_belongs_is_refused(gateway: Running, name: str) -> None:
    files = {"file": ("a.wav", SOUND), name: ("b.wav", SOUND)}
    answer = await gateway.client.post(PATH, files=files)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


async def test_a_sound_has_the_bound_of_an_image(tmp_path: Path) -> None:
    async with running(tmp_path, limits=LimitsConfig(image_mib=1)) as gateway:
        await gateway.add_worker(HEARING)
        assert (await transcribe(gateway, sound=b"x" * 1_000_000)).status_code == 200
        answer = await transcribe(gateway, sound=b"x" * 1_100_000)
        assert answer.json()["error"]["message"].startswith("Field 'file': at most 1048575 bytes")


async def test_a_model_that_does_not_hear_is_a_501(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker(FakeOptions(media_marker="<M>"))
        answer = await transcribe(gateway)
        assert answer.status_code == 501
        assert answer.json()["error"]["message"] == (
            "The current model does not support audio input."
        )


async def test_openais_client_transcribes(gateway: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        whole = await client.audio.transcriptions.create(
            model="any", file=("a.wav", SOUND), prompt="one two", language="en", temperature=0.5
        )
        assert whole.text == "one two (language: en)<M>"
        stream = await client.audio.transcriptions.create(
            model="any", file=("a.wav", SOUND), prompt="one two", stream=True
        )
        events = [event async for event in stream]
        assert events[-1].type == "transcript.text.done"
        assert events[-1].text == "one two<M>"
