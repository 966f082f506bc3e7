"""A picture that takes far longer to decode than its size allows is known before it is decoded."""

import math
import struct
import zlib
from collections.abc import Callable

import pytest

from worker.llama.media.decode_cost import extra_decode_cost

BUDGET = 100_000_000
"""Pixels that a prompt may have; see `MAX_PIXELS`."""


def png_of(
    width: int, height: int, raw: bytes, *, apple: bool = False, part_bytes: int = 8192
) -> bytes:
    """Write an RGB picture whose rows are `raw`, in any number of parts."""
    packer = zlib.compressobj(9, wbits=-15 if apple else 15)
    packed = packer.compress(raw) + packer.flush()
    starts = range(0, len(packed), part_bytes)
    parts = [(b"CgBI", b"abcd")] if apple else []
    parts.append((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)))
    parts += [(b"IDAT", packed[start : start + part_bytes]) for start in starts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in [*parts, (b"IEND", b"")]
    )


def progressive_jpeg(side: int, n_scans: int) -> bytes:
    """Write a grey picture; each scan goes over all blocks and changes nothing."""

    def segment(kind: int, data: bytes) -> bytes:
        return b"\xff" + bytes([kind]) + struct.pack(">H", len(data) + 2) + data

    n_blocks = (side // 8) ** 2
    one_code = bytes([1] + [0] * 15)
    bits = ("0" + "1" * 14) * -(-n_blocks // 32_767)  # runs of blocks without anything
    bits += "1" * (-len(bits) % 8)
    runs = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    head = [
        segment(0xDB, b"\0" + b"\1" * 64),
        segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0"),
        segment(0xC4, b"\x10" + one_code + b"\xe0"),
        segment(0xC4, b"\0" + one_code + b"\0"),
        segment(0xDA, b"\1\1\0\0\0\0") + bytes(n_blocks // 8 + 1),
    ]
    scan = segment(0xDA, b"\1\1\0\1\x3f\x10") + runs
    return b"\xff\xd8" + b"".join(head) + scan * n_scans + b"\xff\xd9"


def gif(n_bytes: int, before: bytes = b"", after: bytes = b"") -> bytes:
    """Write a picture of 10 x 10 with a first frame of so many bytes."""
    n_blocks, rest = divmod(n_bytes, 256)
    blocks = (b"\xff" + b"x" * 255) * n_blocks + (bytes([rest - 1]) + b"x" * (rest - 1))
    head = b"GIF89a" + struct.pack("<HHBBB", 10, 10, 0x80, 0, 0) + bytes(6) + before
    return head + b"," + struct.pack("<HHHHB", 0, 0, 10, 10, 0) + b"\2" + blocks + b"\0" + after


CONTROL = b"!\xf9\4abcd\0"


@pytest.mark.parametrize(
    "picture",
    [
        lambda: png_of(1, 1, bytes(20_000_000)),
        lambda: png_of(1, 1, bytes(20_000_000), apple=True),
        lambda: png_of(1, 1, bytes(20_000_000), part_bytes=1),
        lambda: progressive_jpeg(400, 40_000),
        lambda: gif(2_000_000),
        lambda: gif(2_000_000, before=CONTROL + b"!\xfe\3abc\0"),
        lambda: gif(2_000_000, before=b"!\xf9\2ab"),
        lambda: gif(10, before=b"!\xf9\0" * 700_000),
    ],
    ids=(
        *("PNG", "Apple's PNG", "PNG of many parts", "JPEG"),
        *("GIF", "GIF behind blocks", "GIF behind a block without end", "GIF of blocks"),
    ),
)
def test_pictures_that_unfold_have_no_room(picture: Callable[[], bytes]) -> None:
    data = picture()
    assert len(data) < 3_000_000
    assert extra_decode_cost(data, 400 * 400) > BUDGET


@pytest.mark.parametrize(
    "data",
    [
        png_of(500, 500, bytes(500 * 1501)),
        png_of(500, 500, bytes(100)),
        progressive_jpeg(400, 12),
        gif(100_000),
        gif(1000, before=CONTROL, after=CONTROL + gif(2_000_000)[19:]),
        b"BM" + bytes(100),
        b"GIF89a",
        b"\x89PNG\r\n\x1a\n",
        b"",
    ],
    ids=(
        *("PNG", "half a PNG", "JPEG", "GIF", "long GIF", "BMP"),
        *("head of a GIF", "head of a PNG", "nothing"),
    ),
)
def test_usual_pictures_take_little_more_than_their_pixels(data: bytes) -> None:
    assert extra_decode_cost(data, 500 * 500) < BUDGET / 10


@pytest.mark.parametrize("name", [b"#?RADIANCE", b"#?RGBE"])
def test_a_pixel_of_radiance_counts_as_many(name: bytes) -> None:
    """52 bytes, which claimed 98 million pixels, took 1.4 GB and 2 s."""
    head = name + b"\nFORMAT=32-bit_rle_rgbe\n\n-Y 3000 +X 32768\n"
    assert 98_304_000 + extra_decode_cost(head, 98_304_000) > 4 * BUDGET


def test_what_zlib_cannot_read_is_not_decoded() -> None:
    assert (
        extra_decode_cost(png_of(1, 1, b"abc").replace(b"IDAT", b"IDAT\xff\xff\xff"), 1) == math.inf
    )
