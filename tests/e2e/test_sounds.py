"""Sounds through the pool: the texts are llama-server's for the same random projector."""

import base64
import io
import math
import struct
import wave
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.served import Served, serving
from tests.models.audio_projector import write_audio_projector
from tests.models.shallow import exact_path
from tests.vendors import openai

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

_N_LAYERS = 8
"""With so many of the model's layers each text depends on the sound, and on the language."""
CHAT = ".ark- ( , and, and, and, and, and"
PLAIN = ". First- and, and, and, and, and"
ENGLISH = ".ark- ( , and, and, and,"
"""What llama-server answers with these layers on a CPU, greedy, to the same sound."""


def wav(seconds: float, hertz: float = 440.0, rate: int = 16_000) -> bytes:
    """Return a tone."""
    values = (
        int(9000 * math.sin(2 * math.pi * hertz * i / rate)) for i in range(int(seconds * rate))
    )
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(struct.pack("<h", value) for value in values))
    return out.getvalue()


SOUND = wav(2)


def _adpcm(block: int) -> bytes:
    form = struct.pack("<HHIIHH", 2, 1, 16_000, 16_000, block, 4)
    return b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + form + b"data\x90\1\0\0" + b"\0" * 400


def _xing(n_frames: int) -> bytes:
    first = b"\xff\xfb\x90\0" + b"\0" * 32 + b"Xing\0\0\0\1" + n_frames.to_bytes(4, "big")
    return (first.ljust(417, b"\0") + b"\xff\xfb\x90\0".ljust(417, b"\0")) * 3


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One worker that hears, on the model's first layers."""
    folder = tmp_path_factory.mktemp("hearing")
    projector = write_audio_projector(folder / "mmproj.gguf", 576)
    arguments = ("--mmproj", str(projector), "-c", "2048", "-np", "1", "--port", "0")
    with serving("-m", exact_path(_N_LAYERS), *arguments) as served:
        yield served
        assert "died" not in served.text


def transcribe(pool: Served, sound: bytes = SOUND, **fields: Any) -> Any:
    # What is read behind a cached beginning is rounded differently.
    data = {"temperature": "0", "max_tokens": "12", "cache_prompt": "false", **fields}
    files = {"file": ("a.wav", sound)}
    return pool.client.post("/v1/audio/transcriptions", data=data, files=files).json()


@pytest.mark.cpu
def test_a_chat_hears_what_llama_server_hears(pool: Served) -> None:
    data = base64.b64encode(SOUND).decode()
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    content = [{"type": "text", "text": "What is this?"}, sound]
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 15}
    answer = pool.client.post("/v1/chat/completions", json=body | {"cache_prompt": False}).json()
    assert answer["choices"][0]["message"]["content"] == CHAT
    assert answer["usage"]["prompt_tokens"] == 184
    assert pool.client.get("/props").json()["modalities"]["audio"] is True


@pytest.mark.cpu
def test_a_transcript_is_llama_servers(pool: Served) -> None:
    plain, english = transcribe(pool), transcribe(pool, language="en")
    assert (plain["text"], english["text"]) == (PLAIN, ENGLISH)
    assert (plain["usage"]["input_tokens"], english["usage"]["input_tokens"]) == (186, 191)


def test_another_sound_is_heard(pool: Served) -> None:
    other = transcribe(pool, wav(31))
    assert other["usage"]["input_tokens"] > 300, "31 seconds are two chunks"


def test_openais_client_reads_the_stream(pool: Served) -> None:
    client = openai.OpenAI(base_url=f"{pool.url}/v1", api_key="none")
    stream = client.audio.transcriptions.create(
        model="any", file=("a.wav", SOUND), temperature=0, stream=True, extra_body={"max_tokens": 8}
    )
    *deltas, done = list(stream)
    assert "".join(event.delta for event in deltas) == done.text != ""


@pytest.mark.parametrize(
    "sound",
    [
        b"no sound",
        b"RIFF\xff\xff\xff\xffWAVEfmt " + b"\xff" * 20,
        b"ID3\x04" + b"\x7f" * 400,
        wav(0.0001),
        _adpcm(block=1),
        _xing(2**32 - 2),
    ],
)
def test_what_is_no_sound_is_refused_by_the_forms_field(pool: Served, sound: bytes) -> None:
    error = transcribe(pool, sound)["error"]
    assert (error["code"], error["param"]) == (400, "file"), error
