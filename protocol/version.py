"""Which llamapool this is."""


def version() -> str:
    """Return the version of the installed package; a bare checkout has none."""
    from importlib import metadata  # 4 MB, in processes that nobody asks for their version

    try:
        return metadata.version("llamapool")
    except metadata.PackageNotFoundError:
        return "0.0.0"
