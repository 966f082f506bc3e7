"""How large a picture or a sound becomes is known from its headers, whatever they claim."""

import math
import struct
from time import thread_time

import llama_cpp.mtmd_cpp as mtmd
import pytest

from protocol.errors import ErrorCode, TaskError
from worker.llama.media.size import is_sound, max_sound_s, n_pixels, n_samples

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
        (wav(400, fact=2**32 - 1), 100 / 44_100),
        (flac(441_000, 44_100), 10),
        (flac(2**36 - 1, 1), 2**36 - 1),
        (flac(0, 44_100), 0),
        (flac(96_000, 96_000), 1),
        (flac(1_200_000, 600_000), 1_200_000 * 2 / 12 / RATE),
        (b"ID3\4\0\0\0\0\0\5xxxxx" + flac(441_000, 44_100), 10),
        (b"ID3\4\0\0\0\0\0\0OggS" + b"\0" * 40, math.inf),
        (mp3(100), 100 * 1152 / 44_100),
        (b"ID3\4\0\0\0\0\0\5xxxxx" + mp3(100), 100 * 1152 / 44_100),
    ],
)
def test_a_sound_is_as_long_as_its_headers_say(data: bytes, seconds: float) -> None:
    assert is_sound(data)
    assert n_samples(data, RATE) == pytest.approx(seconds * RATE, rel=0.02)


def adpcm(tag: int, block: int, n_bytes: int = 400, *, bits: int = 4, channels: int = 1) -> bytes:
    """Write a compressed WAV at 1,000 Hz."""
    form = struct.pack("<HHIIHH", tag, channels, 1000, 1000, block, bits)
    data = b"data" + struct.pack("<I", n_bytes) + b"\0" * n_bytes
    return b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", len(form)) + form + data


def extensible(kind: int, block: int) -> bytes:
    """Write the same, whose kind stands behind the format."""
    form = struct.pack("<HHIIHHHHIH", 0xFFFE, 1, 1000, 1000, block, 4, 22, 4, 0, kind) + bytes(14)
    parts = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 400)
    return b"RIFF\0\0\0\0WAVE" + parts + b"\0" * 400


def free_format(n: int) -> bytes:
    """Write frames of MPEG 2.5 layer II without a number of bits: 144 ms each, in 14 bytes."""
    return (b"\xff\xe5\x08\xc0" + b"\0" * 10) * n


def tagged(n_frames: int, name: bytes = b"Xing") -> bytes:
    """Write an MP3 whose first frame says how many there are."""
    first = b"\xff\xfb\x90\0" + b"\0" * 32 + name + b"\0\0\0\1" + n_frames.to_bytes(4, "big")
    return first.ljust(417, b"\0") + mp3(3)


SECOND_FORMAT = wav(400, rate=1, bits=8, channels=1) + wav(0, rate=384_000)[12:36]
SHORT_FORMAT = wav(400, rate=1, bits=8, channels=1).replace(b"fmt \x10", b"fmt \0")


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (adpcm(2, 256), (400 - 2 * 6) * 2 / 1000),
        (adpcm(0x11, 256), ((400 - 2 * 4) * 2 + 2) / 1000),
        (adpcm(2, 256, bits=64), (400 - 2 * 6) * 2 / 1000),
        (extensible(2, 256), (400 - 2 * 6) * 2 / 1000),
        (SECOND_FORMAT, 400),
        (SHORT_FORMAT, 400),
        (free_format(100), 100 * 1152 / 8000),
        (tagged(2**32 - 2), (2**32 - 2) * 1152 / 44_100),
        (tagged(2**31, b"Info"), 2**31 * 1152 / 44_100),
        (b"fLaC" + b"\0" * 40 + mp3(100), 100 * 1152 / 44_100),
        (mp3(1) + (b"\xff\xe5\xe8\0" + mp3(6)) * 50, 301 * 1152 / 44_100 + 50 * 1152 / 8000),
    ],
)
def test_no_header_hides_the_length_of_a_sound(data: bytes, seconds: float) -> None:
    assert n_samples(data, RATE) == pytest.approx(seconds * RATE, rel=0.01)


@pytest.mark.parametrize(
    "data",
    [
        adpcm(2, 1),
        adpcm(2, 6, 3),
        adpcm(0x11, 3),
        adpcm(2, 256, channels=3),
        extensible(2, 1),
        adpcm(6, 1, bits=16),
        wav(400, rate=0),
        wav(400, rate=384_001),
        wav(400, channels=257),
        wav(400, bits=65),
        wav(400, rate=0) + mp3(100),
    ],
)
def test_a_sound_that_would_not_be_read_has_no_length(data: bytes) -> None:
    """Of blocks smaller than their heads miniaudio would count 2^64 samples, and end the worker."""
    assert n_samples(data, RATE) == 0


def test_a_long_sound_has_the_bytes_of_one() -> None:
    """Its prompt gets time by its size: too little for an hour in 360 kB."""
    compact, whole = b"RIFF\0\0\0\0WAVE" + bytes(360_000), mp3(10_000)
    assert max_sound_s([compact]) == pytest.approx(1560, abs=1)
    assert max_sound_s([compact, b"no sound" * 100_000, compact]) == pytest.approx(1920, abs=1)
    assert max_sound_s([whole]) == 3600


@pytest.mark.parametrize("n", range(60))
def test_a_sound_that_is_cut_off_anywhere_raises_nothing(n: int) -> None:
    for whole in (wav(400, fact=9), flac(5, 5), mp3(2), b"ID3\4\0\x10\0\0\0\5" + flac(5, 5)):
        assert n_samples(whole[:n], RATE) >= 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (b"\xff" * 14_000_000, 0.0),
        (b"\xff\xfb\0\0" * 3_500_000, 3600.0),
        (b"\xff\xfb\xf0" * 4_600_000, 0.0),
        (b"\xff\xfb\xf0Xing" * 2_000_000, math.inf),
        (b"fLaC" + b"\0" * 14_000_000, 0.0),
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


@pytest.mark.parametrize("height", [3000, -3000])
def test_a_picture_from_the_top_down_counts_as_one_from_the_bottom_up(height: int) -> None:
    head = struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, 2000, height, 1, 24, 0, 0, 0, 0, 0, 0)
    assert n_pixels(b"BM" + head) == 6_000_000


def pic(width: int, height: int) -> bytes:
    """Write the head of a Softimage picture, and too few pixels."""
    head = b"\x53\x80\xf6\x34" + bytes(84) + b"PICT" + struct.pack(">HHIHH", width, height, 0, 3, 0)
    return head + bytes([0, 8, 2, 0xE0]) + b"\x80\xff\xff\1\2\3"


def test_a_picture_whose_decoder_ends_the_worker_is_none() -> None:
    """stb_image reads from address 0 where a picture of this kind is cut short."""
    assert n_pixels(pic(100, 100)) == 0


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
