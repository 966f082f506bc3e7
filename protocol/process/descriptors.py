"""How many files this process may open."""

import resource

from protocol.errors import ConfigError

_MOST = 65_536
"""Enough for 65,000 clients; used where the hard limit is infinite."""
_LEAST = 64
"""A process of ours opens some forty before the first client comes."""


def descriptors() -> int:
    """Raise this process's limit of open files as far as allowed, and return it.

    Raises `ConfigError` if no process of ours could work with so few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft == resource.RLIM_INFINITY:
        return most
    if soft < _LEAST:
        hint = "raise `ulimit -n` or LimitNOFILE="
        raise ConfigError(f"this process may open {soft} files and needs {_LEAST}: {hint}")
    return soft
