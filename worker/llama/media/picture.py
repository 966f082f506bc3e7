"""Decodes a picture with stb_image, as libmtmd does; knows nothing of sizes that are too large.

libmtmd gives what stb_image cannot read to ffmpeg, with the environment of the worker, and waits
for it without an end.
"""

import ctypes
from typing import Any

import llama_cpp.mtmd_cpp as mtmd

_N_CHANNELS = 3
"""Red, green and blue."""


def decode_picture(data: bytes) -> Any:
    """Return libmtmd's form of a picture; None if it cannot be read."""
    stb: Any = mtmd._libmtmd
    load, free = stb.stbi_load_from_memory, stb.stbi_image_free
    load.restype, free.argtypes = ctypes.POINTER(ctypes.c_uint8), [ctypes.c_void_p]
    width, height, depth = (ctypes.c_int(0) for _ in range(3))
    sizes = (ctypes.byref(width), ctypes.byref(height), ctypes.byref(depth))
    pixels = load(data, ctypes.c_int(len(data)), *sizes, ctypes.c_int(_N_CHANNELS))
    if not pixels:
        return None
    try:
        return mtmd.mtmd_bitmap_init(width.value, height.value, pixels)
    finally:
        free(pixels)
