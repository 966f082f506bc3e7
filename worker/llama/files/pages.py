"""Drops pages of a mapped model that were needed only while loading.

llama.cpp writes some weights anew in the order of its kernels ("repack"), or copies them to a
device, and keeps the whole file mapped. The pages that it read for that would stay in the worker's
resident memory as long as it lives. After they are dropped, pages in use come back from the page
cache at the first access, and the others do not.
"""

import ctypes
import mmap
from collections.abc import Collection, Iterator
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_BLOCK = 64 << 10
_MOST = 1024
"""Maximum number of blocks of a file; a process can have 65,530 mappings in total."""


def forget(files: Collection[Path]) -> int:
    """Drop the resident pages of these files; return the bytes of their mappings.

    Nothing is lost: the mappings stay, read-only. Locked pages stay resident. Where the system does
    not list its mappings (all but Linux) nothing is done.
    """
    try:
        text = _MAPS.read_text()
    except OSError:
        return 0
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found = list(_mappings(text, {str(path.resolve()) for path in files}))
    for start, n_bytes in found:
        libc.madvise(start, n_bytes, mmap.MADV_DONTNEED)
        # A touch maps up to 512 KiB of cached pages around it, and norms lie between the weights
        # that were written anew. It stops where a mapping ends; so every other block becomes one
        # by being left out of core dumps, in which files are not anyway.
        block = max(_BLOCK, n_bytes // _MOST // mmap.PAGESIZE * mmap.PAGESIZE)
        for at in range(0, n_bytes, 2 * block):
            libc.madvise(start + at, min(block, n_bytes - at), mmap.MADV_DONTDUMP)
    return sum(n_bytes for _, n_bytes in found)


def _mappings(text: str, paths: Collection[str]) -> Iterator[tuple[int, int]]:
    """Find the start and the size of each read-only mapping of some files."""
    for line in text.splitlines():
        span, access, _, _, _, *path = line.split(maxsplit=5)
        if path and path[0] in paths and "w" not in access:
            start, end = (int(part, 16) for part in span.split("-"))
            yield start, end - start
