"""What decoding a picture takes beyond its pixels: its decoder, stb_image, has no bound for that.

It inflates all that a PNG holds, 4 GB of a file of 4 MB, whatever size the picture claims. It goes
over all pixels for each scan of a progressive JPEG, of which a megabyte holds thirty thousand. Each
code of a GIF may stand for a chain of 8,192 others, also when all pixels are written. And it takes
15 bytes and three powers for each pixel of Radiance's pictures, whose 50 bytes may be all there is.
"""

import math
import re
import zlib
from collections.abc import Iterator

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_BYTES_PER_PIXEL = 10
"""Four channels of 16 bits; a byte before each row, of which an interlaced picture has two."""
_MAX_PARTS = 65_536
_STEP = 8 << 20
"""Bytes that are inflated at a time."""
_JPEG_SCAN = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
_SCANS_PER_PIXEL = 8
"""Scans over a pixel that count as one: one of a progressive picture takes a tenth as long as to
decode it, one of any other nearly as long, and usual ones have 1 to 12."""
_PIXELS_PER_GIF_BYTE = 64
"""A byte of the first picture of a GIF takes up to 5 us: as long as this many pixels."""

_RADIANCE = (b"#?RADIANCE", b"#?RGBE")
_PIXELS_PER_RADIANCE_PIXEL = 5


def extra_decode_cost(data: bytes, n_pixels: int) -> float:
    """Return how many more pixels would take as long; infinity if it must not be decoded."""
    if data.startswith(_PNG):
        return 0 if _fits(data, _PNG_BYTES_PER_PIXEL * n_pixels + _STEP) else math.inf
    if data.startswith(b"\xff\xd8"):
        return n_pixels * sum(1 for _ in _JPEG_SCAN.finditer(data)) // _SCANS_PER_PIXEL
    if data.startswith(b"GIF8"):
        return _PIXELS_PER_GIF_BYTE * _gif_bytes(data)
    if data.startswith(_RADIANCE):
        return n_pixels * (_PIXELS_PER_RADIANCE_PIXEL - 1)
    return 0


def _fits(data: bytes, limit: int) -> bool:
    """Return whether a PNG inflates without error, as far as it goes, to this many bytes at most.

    zlib refuses some streams that stb_image takes; no program writes them.
    """
    inflate, n_bytes, is_first = zlib.decompressobj(-zlib.MAX_WBITS), 0, True
    try:
        for name, part in _png_parts(data):
            if name == b"CgBI":  # Apple's form, without the two bytes of zlib's head
                is_first = False
            if name != b"IDAT":
                continue
            rest, is_first = part[2 * is_first :], False
            while rest and not inflate.eof:
                n_bytes += len(inflate.decompress(rest, _STEP))
                rest = inflate.unconsumed_tail
                if n_bytes > limit:
                    return False
    except (zlib.error, ValueError):
        return False
    return True


def _png_parts(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_PNG)
    for _ in range(_MAX_PARTS):
        size = int.from_bytes(data[at : at + 4], "big")
        name = data[at + 4 : at + 8]
        if len(name) < 4 or name == b"IEND":
            return
        yield name, data[at + 8 : at + 8 + size]
        at += 12 + size
    raise ValueError("too many parts")


def _gif_bytes(data: bytes) -> int:
    """Return the size of the first picture, which alone is decoded."""
    at = 13 + _table_bytes(data, 10)
    for _ in range(_MAX_PARTS):
        if data[at : at + 1] != b"!":
            break
        kind, size = data[at + 1 : at + 2], data[at + 2 : at + 3]
        # Of a control block with another size than 4, stb_image reads no further blocks.
        at = at + 3 + sum(size) if kind == b"\xf9" and size != b"\x04" else _behind(data, at + 2)
    else:
        return len(data)
    if data[at : at + 1] != b",":
        return 0
    start = at + 11 + _table_bytes(data, at + 9)
    return _behind(data, start) - start


def _table_bytes(data: bytes, at: int) -> int:
    flags = data[at] if at < len(data) else 0
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _behind(data: bytes, at: int) -> int:
    while at < len(data) and data[at]:
        at += 1 + data[at]
    return at + 1
