"""Tokens that each key has used today, by the usage database: daily limits survive a restart."""

import time
from pathlib import Path

from gateway.pool.tenants.charges import cost
from gateway.usage.database import spent_on
from gateway.usage.entry import usage_day


def used_today(folder: str) -> dict[str, int]:
    """Return the tokens of each key on this day, weighed as the limits do; empty without a folder.

    Reads a database.
    """
    if not folder:
        return {}
    found = spent_on(Path(folder), usage_day(time.time()))
    return {
        key: round(cost(tokens.prompt, tokens.cached, tokens.completion))
        for key, tokens in found.items()
        if key
    }
