"""Which llamapool this is."""

from importlib import metadata


def version() -> str:
    """Return the version of the installed package; a bare checkout has none."""
    try:
        return metadata.version("llamapool")
    except metadata.PackageNotFoundError:
        return "0.0.0"
