"""How large a picture or a sound becomes when it is decoded, read from its headers alone.

A file of some kilobytes may unfold to gigabytes: libmtmd allocates what the headers say and decodes
at once. `n_samples` follows the readers of miniaudio, which libmtmd uses. Formats that it cannot
follow are refused, because their length would be known too late.
"""

import ctypes
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import llama_cpp.mtmd_cpp as mtmd

from protocol.errors import ErrorCode, TaskError

MAX_SOUND_S = 3600.0
"""Of all sounds of a prompt; a file is not measured beyond it."""
_MAX_RATIO = 200
"""Longest side of a picture in shortest sides, beyond which it counts for more than its pixels.

Qwen's own programs take no thinner ones.
"""
_UNKNOWN = math.inf
_MAX_PARTS = 1024
"""Parts of a RIFF file or tags before a sound that are walked; files have some dozens at most."""
_TAG_HEAD = 10
"""Bytes of the head of an ID3v2 tag."""
_WINDOW = 64 * 1024
"""Bytes that are searched at a time: other threads of the worker run in between."""
_MP3_HEAD = re.compile(
    rb"\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff][%s]"
    % b"".join(rb"\x%x0-\x%xb" % (kbits, kbits) for kbits in range(1, 15))
)
"""Version and layer that are not reserved, then a known number of bits and of samples a second."""
_MP3_RATES = ((11025, 12000, 8000), (), (22050, 24000, 16000), (44100, 48000, 32000))
"""Samples a second by version (2.5, reserved, 2, 1) and index."""
_MP3_KBITS = {
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Thousands of bits a second by version 1 or not, layer, and index (ISO 11172-3, 13818-3)."""


def is_sound(data: bytes) -> bool:
    """Return whether libmtmd takes a file for a sound, by its first bytes."""
    is_mp3 = data[:3] == b"ID3" or (data[:1] == b"\xff" and data[1:2] >= b"\xe0")
    return len(data) >= 12 and (
        (data[:4] == b"RIFF" and data[8:12] == b"WAVE") or is_mp3 or data[:4] == b"fLaC"
    )


def n_pixels(data: bytes) -> int:
    """Return the pixels of a picture, 0 for other data; raises `TaskError` if they are unknown.

    A thin one counts as one that is less thin: libmtmd makes its short side a patch wide.
    """
    info: Any = getattr(mtmd._libmtmd, "stbi_info_from_memory", None)
    if info is None:
        raise TaskError(ErrorCode.NOT_SUPPORTED, "this libmtmd does not tell the size of a picture")
    width, height, depth = (ctypes.c_int(0) for _ in range(3))
    size = ctypes.c_int(len(data))
    found = info(data, size, ctypes.byref(width), ctypes.byref(height), ctypes.byref(depth))
    n = width.value * height.value if found else 0
    return max(n, max(width.value, height.value) ** 2 // _MAX_RATIO) if n else 0


def n_samples(data: bytes, rate: int) -> float:
    """Return the samples of a sound at a rate, at least; infinity if that cannot be known."""
    if data[:4] == b"RIFF":
        return _of_wav(data, rate)
    start = _after_tags(data)
    if start is not None and data[start : start + 4] == b"fLaC":
        return _of_flac(data[start:], rate)
    if start is None or data[start : start + 4] == b"OggS":
        return _UNKNOWN
    return _of_mp3(data, rate)


def _of_wav(data: bytes, rate: int) -> float:
    own_rate = n_frames = 0
    for i, (name, start, size) in enumerate(_chunks(data)):
        if i == _MAX_PARTS:
            return _UNKNOWN
        if name == b"fmt ":
            own_rate = int.from_bytes(data[start + 4 : start + 8], "little")
            block = int.from_bytes(data[start + 12 : start + 14], "little")
            bits = int.from_bytes(data[start + 14 : start + 16], "little")
            n_channels = int.from_bytes(data[start + 2 : start + 4], "little")
            frame_bits = bits * n_channels if bits >= 8 else 4 * n_channels
            frame_bits = min(frame_bits, 8 * block) or 1
        elif name == b"fact":
            n_frames = max(n_frames, int.from_bytes(data[start : start + 4], "little"))
        elif name == b"data" and own_rate:
            n_frames = max(n_frames, 8 * min(size, len(data) - start) // frame_bits)
    return n_frames * rate / own_rate if own_rate else 0


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and size of the parts of a RIFF file."""
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        yield data[at : at + 4], at + 8, size
        at += 8 + size + size % 2


def _after_tags(data: bytes) -> int | None:
    """Return where the sound begins behind its ID3v2 tags; None if they are too many."""
    at = 0
    for _ in range(_MAX_PARTS):
        if data[at : at + 3] != b"ID3" or at + _TAG_HEAD > len(data):
            return at
        a, b, c, d = data[at + 6 : at + 10]
        has_footer = bool(data[at + 5] & 0x10)
        at += _TAG_HEAD * (1 + has_footer) + (a << 21 | b << 14 | c << 7 | d)
    return None


def _of_flac(data: bytes, rate: int) -> float:
    """Read STREAMINFO, which must be the first block."""
    facts = int.from_bytes(data[18:26], "big")
    own_rate, n_frames = facts >> 44, facts & (2**36 - 1)
    return n_frames * rate / own_rate if own_rate else 0


def _of_mp3(data: bytes, rate: int) -> float:
    seconds, at = 0.0, 0
    while at + 2 < len(data) and seconds <= MAX_SOUND_S:
        head = _MP3_HEAD.search(data, at, at + _WINDOW)
        if head is None:
            at += _WINDOW - 2  # a head may lie across two windows
            continue
        size, lasts_s = _mp3_frame(*head[0][1:])
        seconds += lasts_s
        at = head.start() + size
    return seconds * rate


@cache
def _mp3_frame(first: int, second: int) -> tuple[int, float]:
    """Return bytes and seconds of a frame, by the second and third byte of its head."""
    version, layer = first >> 3 & 3, 4 - (first >> 1 & 3)
    is_first = version == 3
    rate = _MP3_RATES[version][second >> 2 & 3]
    n_samples = 384 if layer == 1 else 1152 if is_first or layer == 2 else 576
    unit = 4 if layer == 1 else 1
    bits = 1000 * _MP3_KBITS[is_first, layer][second >> 4]
    size = (n_samples // 8 // unit * bits // rate + (second >> 1 & 1)) * unit
    return size, n_samples / rate
