"""Media that a body names by URL: noted while planning, fetched before the tasks run."""

from typing import NamedTuple

_SCHEMES = ("http://", "https://", "file://")


class MediaLink(NamedTuple):
    """Where to find one piece of a task's media, which is empty until then."""

    place: int
    """Which piece it is."""
    url: str
    param: str
    """The field that names it."""
    kind: str
    """`image` or `audio`."""


def is_link(value: str) -> bool:
    """Tell a URL that is to be fetched from data."""
    return value[:8].lower().startswith(_SCHEMES)
