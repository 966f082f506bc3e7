"""Refuses sounds that would end the process, and values that would put NaN into the KV cache.

All tasks share that cache.
"""

import ctypes
from typing import Any

import llama_cpp.mtmd_cpp as mtmd
import numpy as np

from worker.engine.backend import DecodeFailed
from worker.engine.media import MediumRefused

MAX_SAMPLE = 1e6
"""Largest sample of a sound. Full scale is 1; the sums of squares of 1e19 are infinite."""
_MIN_SAMPLES = 1024
"""Of a sound: 64 ms at 16 kHz. libmtmd aborts on one of a single sample, and for Conformers on one
of less than two steps of its window."""

Floats = np.ndarray[tuple[int], np.dtype[np.float32]]


def check_samples(bitmap: Any, place: int) -> None:
    """Refuse a sound that is too short, or has a sample that is no number or beyond all loudness.

    WAV has such samples.
    """
    if not mtmd.mtmd_bitmap_is_audio(bitmap):
        return
    n = int(mtmd.mtmd_bitmap_get_n_bytes(bitmap)) // 4
    if n < _MIN_SAMPLES:
        message = f"the sound is too short: {n} samples, of at least {_MIN_SAMPLES}"
        raise MediumRefused(message, place)
    data = ctypes.cast(mtmd.mtmd_bitmap_get_data(bitmap), ctypes.POINTER(ctypes.c_float))
    samples = np.ctypeslib.as_array(data, (n,))
    if not (samples.min() >= -MAX_SAMPLE and samples.max() <= MAX_SAMPLE):
        message = f"the sound has samples that are not numbers between {-MAX_SAMPLE:g} and"
        raise MediumRefused(f"{message} {MAX_SAMPLE:g}", place)


def check_embedding(embedding: Floats) -> None:
    """Refuse an embedding with a value that is not a finite number."""
    if not np.isfinite(embedding).all():
        raise DecodeFailed("encoding media gave values that are not numbers", fatal=False)
