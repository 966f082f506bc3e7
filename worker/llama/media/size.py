"""How large a picture or a sound becomes when it is decoded, read from its headers alone.

A file of some kilobytes may unfold to gigabytes: libmtmd allocates what the headers say and decodes
at once. `n_samples` follows the readers of miniaudio, which libmtmd uses. Formats that it cannot
follow are refused, because their length would be known too late.
"""

import ctypes
import math
import re
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import llama_cpp.mtmd_cpp as mtmd

from protocol.errors import ErrorCode, TaskError

MAX_SOUND_S = 3600.0
"""Of all sounds of a prompt; a file is not measured beyond it."""
_COMPACT_SOUND_S, _BYTES_PER_SOUND_S = 1200.0, 1000
"""Seconds that a sound of any size may last; bytes that each further second needs, as many as in
the smallest MP3 (8 kbit/s).

Nothing interrupts libmtmd while it makes the spectrum: an hour, 360 kB of WAV at 100 Hz, takes two
cores 13 s, but a prompt of so few bytes has 5 s, and 10 s later its worker is ended.
"""
_MAX_RATIO = 200
"""Longest side of a picture in shortest sides, beyond which it counts for more than its pixels.

Qwen's own programs take no thinner ones.
"""
_SOFTIMAGE = b"\x53\x80\xf6\x34"
"""Begins a picture that stb_image ends the process on if it is cut short."""
_UNKNOWN = math.inf
_MAX_PARTS = 1024
"""Parts of a RIFF file or tags before a sound that are walked; files have some dozens at most."""
_TAG_HEAD = 10
"""Bytes of the head of an ID3v2 tag."""
_WINDOW = 64 * 1024
"""Bytes that are searched at a time: other threads of the worker run in between."""
_FLAC_VALUES_PER_SAMPLE = 12
"""Values of all channels that take as long as a sample: two of 96 kHz become 16 kHz. 400 kB hold 20
minutes of one value in eight channels at 655 kHz, which took more than 6 s."""
_MP3_HEAD = re.compile(
    rb"\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff][%s]"
    % b"".join(rb"\x%x0-\x%xb" % (kbits, kbits) for kbits in range(15))
)
"""Version and layer that are not reserved, then a possible number of bits and of samples a second.

Any number of bits: a frame without one ends where the next begins, after a few bytes.
"""
_MP3_RATES = ((11025, 12000, 8000), (), (22050, 24000, 16000), (44100, 48000, 32000))
"""Samples a second by version (2.5, reserved, 2, 1) and index."""
_MP3_TAGS = (b"Xing", b"Info")
_MP3_TAG_AT = (13, 15, 21, 23, 36, 38)
"""Where the tag of a first frame may begin, behind the frame's head, its sum and the side info."""
_MAX_WAV_RATE, _MAX_WAV_CHANNELS, _MAX_WAV_BITS = 384_000, 256, 64
"""Samples a second, channels and bits of a sample beyond which a file counts as broken."""
_WAV_FORMAT = 16
"""Bytes of a format, which are read however few it claims."""
_EXTENSIBLE = 0xFFFE
"""WAVE_FORMAT_EXTENSIBLE: the format stands in the extension."""
_ADPCM_HEADS = {2: (6, 0), 0x11: (4, 1)}
"""ADPCM's formats: bytes of a block's head for each channel, and samples in it."""
_LAWS = (6, 7)
"""A-law and mu-law: one byte a sample."""


def is_sound(data: bytes) -> bool:
    """Return whether libmtmd takes a file for a sound, by its first bytes."""
    is_mp3 = data[:3] == b"ID3" or (data[:1] == b"\xff" and data[1:2] >= b"\xe0")
    return len(data) >= 12 and (
        (data[:4] == b"RIFF" and data[8:12] == b"WAVE") or is_mp3 or data[:4] == b"fLaC"
    )


def max_sound_s(media: Sequence[bytes]) -> float:
    """Return how long all sounds of a prompt may be together."""
    n_bytes = sum(len(data) for data in media if is_sound(data))
    return min(MAX_SOUND_S, _COMPACT_SOUND_S + n_bytes / _BYTES_PER_SOUND_S)


def n_pixels(data: bytes) -> int:
    """Return the pixels of a picture, 0 for other data; raises `TaskError` if they are unknown.

    Softimage's count as other data. A thin one counts as one that is less thin: libmtmd makes its
    short side a patch wide.
    """
    info: Any = getattr(mtmd._libmtmd, "stbi_info_from_memory", None)
    if info is None:
        raise TaskError(ErrorCode.NOT_SUPPORTED, "this libmtmd does not tell the size of a picture")
    width, height, depth = (ctypes.c_int(0) for _ in range(3))
    if data.startswith(_SOFTIMAGE):
        return 0
    size = ctypes.c_int(len(data))
    found = info(data, size, ctypes.byref(width), ctypes.byref(height), ctypes.byref(depth))
    # A BMP whose rows go from the top down has a negative height.
    sides = abs(width.value), abs(height.value)
    n = sides[0] * sides[1] if found else 0
    return max(n, max(sides) ** 2 // _MAX_RATIO) if n else 0


def n_samples(data: bytes, rate: int) -> float:
    """Return the samples of a sound at a rate, at least; infinity if that cannot be known.

    0 if it cannot be read, or has none. miniaudio tries one reader after the other.
    """
    if data[:4] == b"RIFF":
        return _of_wav(data, rate)
    start = _after_tags(data)
    if start is None or data[start : start + 4] == b"OggS":
        return _UNKNOWN
    if data[start : start + 4] == b"fLaC":
        return max(_of_flac(data[start:], rate), _of_mp3(data, rate))
    return _of_mp3(data, rate)


def _of_wav(data: bytes, rate: int) -> float:
    """Read the format and the first data behind it, as miniaudio does."""
    form = -1
    for i, (name, start, size) in enumerate(_chunks(data)):
        if i == _MAX_PARTS:
            return _UNKNOWN
        if name == b"fmt ":
            form = start
        elif name == b"data" and form >= 0:
            n_frames, own_rate = _wav_frames(data[form : form + 26], min(size, len(data) - start))
            return n_frames * rate / own_rate
    return 0


def _wav_frames(form: bytes, n_bytes: int) -> tuple[float, int]:
    """Return frames and their rate; 0 frames if miniaudio does not take the format."""
    tag, n_channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", form)
    if tag == _EXTENSIBLE:
        tag = int.from_bytes(form[24:26], "little")
    is_known = 0 < rate <= _MAX_WAV_RATE and 0 < n_channels <= _MAX_WAV_CHANNELS
    if not (is_known and 0 < bits <= _MAX_WAV_BITS and block):
        return 0, 1
    frame = block if bits % 8 else bits * n_channels // 8
    if tag in _LAWS and frame != n_channels:
        return 0, 1
    if tag not in _ADPCM_HEADS:
        return n_bytes // frame, rate
    head, n_more = _ADPCM_HEADS[tag]
    n_blocks = -(-n_bytes // block)
    n_left = n_bytes - n_blocks * head * n_channels
    # miniaudio does not see that blocks are smaller than their heads: it would count to 2^64.
    is_whole = n_left >= 0 and n_channels <= 2
    n_frames = 2 * n_left // n_channels + n_more * n_blocks
    return (max(n_frames, n_bytes // frame) if is_whole else 0), rate


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and size of the parts of a RIFF file whose heads are whole."""
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        n_least = _WAV_FORMAT if name == b"fmt " else 0
        if at + 8 + n_least > len(data):
            return
        yield name, at + 8, size
        at += 8 + max(size, n_least) + size % 2


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
    """Read STREAMINFO, which must be the first block; many channels at a high rate count more."""
    facts = int.from_bytes(data[18:26], "big")
    own_rate, n_channels, n_frames = facts >> 44, (facts >> 41 & 7) + 1, facts & (2**36 - 1)
    n = n_frames * rate / own_rate if own_rate else 0
    return max(n, n_frames * n_channels / _FLAC_VALUES_PER_SAMPLE)


def _of_mp3(data: bytes, rate: int) -> float:
    """Count all that may be heads of frames: which of them are, a decoder alone would know."""
    seconds, at = _tagged_s(data), 0
    while at + 2 < len(data) and seconds <= MAX_SOUND_S:
        head = _MP3_HEAD.search(data, at, at + _WINDOW)
        if head is None:
            at += _WINDOW - 2  # a head may lie across two windows
            continue
        seconds += _mp3_frame_s(*head[0][1:])
        at = head.end()
    return seconds * rate


def _tagged_s(data: bytes) -> float:
    """Return the most that a tag of Xing's kind claims, which miniaudio believes."""
    longest_s = 0.0
    for name in _MP3_TAGS:
        at = data.find(name)
        for _ in range(_MAX_PARTS):
            if at < 0:
                break
            longest_s = max(longest_s, _claimed_s(data, at))
            at = data.find(name, at + 1)
        else:
            return _UNKNOWN
    return longest_s


def _claimed_s(data: bytes, at: int) -> float:
    """Return what a tag at this place claims, if it stands in a frame and claims anything."""
    if not data[at + 7 : at + 8] or not data[at + 7] & 1:
        return 0.0
    n_frames = int.from_bytes(data[at + 8 : at + 12], "big")
    heads = (_MP3_HEAD.match(data, at - offset) for offset in _MP3_TAG_AT if at >= offset)
    return max((n_frames * _mp3_frame_s(*head[0][1:]) for head in heads if head), default=0.0)


@cache
def _mp3_frame_s(first: int, second: int) -> float:
    """Return how long a frame lasts, by the second and third byte of its head."""
    version, layer = first >> 3 & 3, 4 - (first >> 1 & 3)
    n_samples = 384 if layer == 1 else 1152 if version == 3 or layer == 2 else 576
    return n_samples / _MP3_RATES[version][second >> 2 & 3]
