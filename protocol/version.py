"""The version of llamapool."""

from functools import cache


@cache
def version() -> str:
    """Return the version of the installed package; empty for a checkout that is not installed."""
    from importlib import metadata  # 4 MB of memory, so imported only when needed

    try:
        return metadata.version("llamapool")
    except metadata.PackageNotFoundError:
        return "0.0.0"
