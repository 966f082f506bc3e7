"""Which modules a module imports, so that the page can name all of them at once.

A browser learns of a module only when it has read one that imports it: far from the server each
level costs a round trip. It fetches those that the document names beforehand without waiting.
Source: HTML, `rel="modulepreload"`.
"""

import posixpath
import re
from collections.abc import Mapping

_IMPORT = re.compile(
    rb"""(?:^|;)\s*(?:import|export)\b(?:[^;'"()]*?\bfrom)?\s*['"](\.[^'"]+)['"]""", re.MULTILINE
)
"""A statement that imports or exports again what a module exports; not the call `import()`."""


def imported(bodies: Mapping[str, bytes], *entries: str) -> list[str]:
    """Return the names of the entries and of what they import, directly or not, nearest first.

    `bodies` are modules by name; imports of others are passed over.
    """
    found = dict.fromkeys(entries)
    names = list(found)
    for name in names:  # grows meanwhile
        for match in _IMPORT.finditer(bodies[name]):
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[1].decode()))
            if other in bodies and other not in found:
                found[other] = None
                names.append(other)
    return names


def preload_links(names: list[str], root: str) -> str:
    """Return the lines of a document's head that let a browser fetch modules beforehand."""
    return "\n".join(f'<link rel="modulepreload" href="{root}{name}">' for name in names)
