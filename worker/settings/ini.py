"""Parses a preset file: sections of `key = value`, as llama-server's parser does. Pure."""

import re

from protocol.errors import ConfigError

EVERY = "*"
"""Name of the section that applies to every model."""
UNNAMED = "default"
"""llama-server's name for the keys before the first section."""

_MAX_SECTIONS = 4096
"""Models of a preset file."""

# No two parts of a pattern take the same spaces: trying all ways to divide them takes hours.
_HEADER = re.compile(r"\[([^\]]+)\]\s*(?:[;#].*)?")
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)\s*=([^;#]*)(?:[;#].*)?")
_BLANK = re.compile(r"(?:[;#].*)?")
_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")

Sections = dict[str, dict[str, str]]


def parse(text: str, *, origin: str) -> Sections:
    """Return the sections in order; raises `ConfigError` with the line's number."""
    sections: Sections = {}
    section = UNNAMED
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if (header := _HEADER.fullmatch(stripped)) and (name := header[1].strip()):
            section = canonical(name)
            if len(sections) >= _MAX_SECTIONS:
                raise ConfigError(f"{origin}:{number}: more than {_MAX_SECTIONS} sections")
            if section in sections:
                raise ConfigError(f"{origin}:{number}: section [{section}] is there twice")
            sections[section] = {}
        elif pair := _PAIR.fullmatch(stripped):
            sections.setdefault(section, {})[pair[1]] = pair[2].strip()
        elif not _BLANK.fullmatch(stripped):
            raise ConfigError(f"{origin}:{number}: must be [SECTION], KEY = VALUE or a comment")
    if not sections.get(UNNAMED, {}).keys() - {"version"}:
        sections.pop(UNNAMED, None)
    return sections


def canonical(section: str) -> str:
    """Return a section's name with its tag as llama-server writes it: `user/model:Q8_0`."""
    repo, colon, tag = section.rpartition(":")
    if not colon:
        return section
    found = _TAG.search(tag)
    return f"{repo}:{(found[1] if found else tag).upper()}"
