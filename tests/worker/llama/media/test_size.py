"""How large a picture or a sound becomes is known from its headers, whatever they claim."""

import math
import struct
from time import thread_time

import llama_cpp.mtmd_cpp as mtmd
import pytest

from protocol.errors import ErrorCode, TaskError
from worker.llama.media.size import is_sound, n_pixels, n_samples

RATE = 16_000


def wav(
    n_bytes: int, *, rate: int = 44_100, bits: int = 16, channels: int = 2, fact: int = 0
) -> bytes:
    """Write a WAV whose data part claims so many bytes, of which 400 are there."""
    block = max(1, bits * channels // 8)
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * block, block, bits)
    parts = [b"fmt " + struct.pack("<I", len(form)) + form]
    parts += [b"fact" + struct.pack("<II", 4, fact)] if fact else []
    parts.append(b"data" + struct.pack("<I", n_bytes) + b"\0" * 400)
    return b"RIFF\xff\xff\xff\xffWAVE" + b"".join(parts)


def flac(n: int, rate: int) -> bytes:
    """Write the head of a FLAC file."""
    facts = rate << 44 | 1 << 41 | 15 << 36 | n
    return b"fLaC\0\0\0\x22" + b"\0" * 10 + facts.to_bytes(8, "big") + b"\0" * 16


def mp3(n_frames: int) -> bytes:
    """Write silent frames of MPEG 1 layer III, 128 kbit/s, 44.1 kHz: 417 bytes each."""
    return (b"\xff\xfb\x90\0" + b"\0" * 413) * n_frames


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (wav(400), 100 / 44_100),
        (wav(2**32 - 1), 100 / 44_100),
        (wav(400, rate=1), 100),
        (wav(400, rate=1, bits=8, channels=1), 400),
        (wav(400, fact=2**32 - 1), (2**32 - 1) / 44_100),
        (flac(441_000, 44_100), 10),
        (flac(2**36 - 1, 1), 2**36 - 1),
        (flac(0, 44_100), 0),
        (b"ID3\4\0\0\0\0\0\5xxxxx" + flac(441_000, 44_100), 10),
        (b"ID3\4\0\0\0\0\0\0OggS" + b"\0" * 40, math.inf),
        (mp3(100), 100 * 1152 / 44_100),
        (b"ID3\4\0\0\0\0\0\5xxxxx" + mp3(100), 100 * 1152 / 44_100),
    ],
)
def test_a_sound_is_as_long_as_its_headers_say(data: bytes, seconds: float) -> None:
    assert is_sound(data)
    assert n_samples(data, RATE) == pytest.approx(seconds * RATE, rel=0.02)


@pytest.mark.parametrize("n", range(60))
def test_a_sound_that_is_cut_off_anywhere_raises_nothing(n: int) -> None:
    for whole in (wav(400, fact=9), flac(5, 5), mp3(2), b"ID3\4\0\x10\0\0\0\5" + flac(5, 5)):
        assert n_samples(whole[:n], RATE) >= 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (b"\xff" * 14_000_000, 0.0),
        (b"\xff\xfb\0\0" * 3_500_000, 0.0),
        (b"\xff\xff\x1c" * 4_600_000, 0.0),
        ((b"\xff\xff\x14" + b"\0" * 29) * 500_000, 3600.0),
        (b"RIFF\0\0\0\0WAVE" + b"\0" * 14_000_000, math.inf),
        (b"ID3\0\0\0\0\0\0\0" * 1_400_000, math.inf),
    ],
)
def test_no_file_of_a_request_is_measured_for_long(data: bytes, seconds: float) -> None:
    start = thread_time()
    assert n_samples(data, RATE) == pytest.approx(seconds * RATE, rel=0.001)
    assert thread_time() - start < 1.0


def test_a_head_is_found_across_two_windows() -> None:
    for n in range(65_530, 65_540):
        assert n_samples(b"ID3\0" + b"\0" * n + mp3(1), RATE) > 0


def test_a_picture_tells_its_size_before_it_is_decoded() -> None:
    gif = b"GIF89a" + struct.pack("<HHBBB", 30_000, 40_000, 0, 0, 0) + b";"
    assert n_pixels(gif) == 30_000 * 40_000
    assert n_pixels(b"no picture at all") == 0
    assert n_pixels(b"GIF89a" + struct.pack("<HHBBB", 30_000, 0, 0, 0, 0) + b";") == 0


def test_a_thin_picture_counts_as_what_it_becomes() -> None:
    """Of 16,000,000 x 1 pixels, 50 KB as a file, libmtmd makes 200 megapixels for Qwen2.5-VL."""
    thin = struct.pack(">IIBBBBB", 16_000_000, 1, 8, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(thin)) + b"IHDR" + thin + bytes(4)
    assert n_pixels(png + bytes(4) + b"IDAT" + bytes(4)) > 10**12
    assert n_pixels(b"GIF89a" + struct.pack("<HHBBB", 20_000, 10, 0, 0, 0) + b";") == 2_000_000
    assert n_pixels(b"GIF89a" + struct.pack("<HHBBB", 2000, 10, 0, 0, 0) + b";") == 20_000


def test_no_picture_is_read_whose_size_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mtmd, "_libmtmd", object())
    with pytest.raises(TaskError) as caught:
        n_pixels(b"GIF89a")
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
