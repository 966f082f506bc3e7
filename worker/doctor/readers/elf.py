"""Reads the CPU extensions of a shared library from its file, without running it.

ggml has a function for each extension of the CPU that returns whether the build uses it. Its body
is one constant, so its bytes give the answer, even if the library cannot run on this CPU.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "ggml_cpu_has_"
_YES = b"\xb8\x01\x00\x00\x00\xc3"  # mov eax, 1; ret
_ENDBR64 = b"\xf3\x0f\x1e\xfa"
_DYNSYM = 11
_X86_64 = 62
"""Type of a section and number of a machine. Source: elf.h."""


def built_for(path: Path) -> frozenset[str]:
    """Return the extensions that an x86-64 build uses, as in `avx2`; none if they are unknown."""
    try:
        data = path.read_bytes()
        bodies = ((name, code.removeprefix(_ENDBR64)) for name, code in _functions(data))
        return frozenset(name for name, body in bodies if body.startswith(_YES))
    except (OSError, ValueError, struct.error):
        return frozenset()


def _functions(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each extension's function and its first bytes."""
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != _X86_64:
        return
    sections = list(_sections(data))
    for kind, _, offset, size, link in sections:
        if kind != _DYNSYM:
            continue
        names = sections[link][2]
        for at in range(offset, offset + size, 24):
            name_at, _, _, _, value, length = struct.unpack_from("<IBBHQQ", data, at)
            end = data.index(b"\0", names + name_at)
            name = data[names + name_at : end].decode(errors="replace")
            if name.startswith(_PREFIX) and length:
                place = _place(sections, value)
                yield name.removeprefix(_PREFIX), data[place : place + length]


def _sections(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield type, address, offset, size and link of each section."""
    table = struct.unpack_from("<Q", data, 40)[0]
    entry_size, n_entries = struct.unpack_from("<HH", data, 58)
    for index in range(n_entries):
        fields = struct.unpack_from("<IIQQQQII", data, table + index * entry_size)
        yield fields[1], fields[3], fields[4], fields[5], fields[6]


def _place(sections: list[tuple[int, int, int, int, int]], address: int) -> int:
    """Return where in the file the byte of an address is."""
    for _, start, offset, size, _ in sections:
        if start and start <= address < start + size:
            return offset + address - start
    raise ValueError("an address is in no section")
