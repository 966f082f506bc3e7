"""A request that is being changed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.hostile.case import HostileCase


@dataclass(slots=True)
class Draft:
    """A request that is being changed; `data` is its written body, once there is one."""

    case: HostileCase
    body: Any
    data: bytes = b""
    key: str = ""
    """The only field whose value has changed its meaning, if it is one of the outermost."""

    def fields(self) -> dict[str, Any]:
        """Return the object whose fields mean something: the body or an instance of it."""
        return self.body if isinstance(self.body, dict) else {}


Change = Callable[[Draft, random.Random], str]
