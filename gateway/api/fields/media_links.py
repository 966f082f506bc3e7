"""Media that a body names by URL: collected while planning, fetched before the tasks run."""

from typing import NamedTuple

_SCHEMES = ("http://", "https://", "file://")


class MediaLink(NamedTuple):
    """The URL of one piece of a task's media; the piece is empty until it is fetched."""

    place: int
    """Index of the piece."""
    url: str
    param: str
    """The field that names it."""
    kind: str
    """`image` or `audio`."""


def is_link(value: str) -> bool:
    """Return whether the text is a URL to fetch, and not data."""
    return value[:8].lower().startswith(_SCHEMES)
