"""The type of options that are a time to wait."""

import math
from typing import Any

import click

_MAX_S = 86_400


class Seconds(click.FloatRange):
    """From 0 to a day; `nan`, which click's ranges take, would be reached never or at once."""

    def __init__(self) -> None:
        super().__init__(0, _MAX_S)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is no number", param, ctx)
        return seconds
