"""How usage is written: `[gateway.usage]` of a configuration file."""

import os
from dataclasses import dataclass

from protocol.wire.schema import param

STATE_VARIABLE = "STATE_DIRECTORY"
"""Set by systemd for a unit with `StateDirectory=`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageConfig:
    """The usage log, in the folder `gateway.usage_dir`."""

    max_mib: int = param(
        64, "Size at which a new file of the log is started, in MiB.", low=1, high=1 << 20
    )
    keep_days: int = param(
        0, "Days after which files of the log are removed; their sums stay. 0: never.", low=0
    )
    fsync_s: float = param(
        1.0,
        "Seconds until a line is on the disk for certain (fsync); 0: at once, -1: as the system "
        "does it.",
        low=-1,
        high=86_400,
    )


def usage_folder(configured: str) -> str:
    """Return the folder that is used; empty is none."""
    if configured:
        return configured
    first = os.environ.get(STATE_VARIABLE, "").split(":")[0]
    return f"{first}/usage" if first else ""
