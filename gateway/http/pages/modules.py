"""The modules that a page needs, and the links by which its document names all of them.

A browser learns of a module only when it has read one that imports it: each level of imports costs
a round trip. Modules that the document names are fetched at once. Source: HTML, `modulepreload`.
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
    names = list(entries)
    for name in names:  # grows meanwhile
        for match in _IMPORT.finditer(bodies[name]):
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[1].decode()))
            if other in bodies and other not in names:
                names.append(other)
    return names


def preload_links(names: list[str], root: str) -> str:
    """Return the lines of a document's head that let a browser fetch modules beforehand."""
    return "\n".join(f'<link rel="modulepreload" href="{root}{name}">' for name in names)
