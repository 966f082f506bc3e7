"""Tokens that each key has used today, by the usage database: daily limits survive a restart."""

import time
from pathlib import Path

from gateway.pool.tenants.charges import CACHED_COST
from gateway.usage.database import spent_on
from gateway.usage.entry import Tokens, usage_day


def used_today(folder: str) -> dict[str, int]:
    """Return the tokens of each key on this day; empty without a folder. Reads a database."""
    if not folder:
        return {}
    found = spent_on(Path(folder), usage_day(time.time()))
    return {key: round(_cost(tokens)) for key, tokens in found.items() if key}


def _cost(tokens: Tokens) -> float:
    """Weigh tokens as the limits do."""
    return tokens.prompt - (1 - CACHED_COST) * tokens.cached + tokens.completion
