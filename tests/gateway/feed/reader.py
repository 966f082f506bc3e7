"""A reader of the live feed, as the page is one: it puts states together from events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson

from gateway.feed.changes import State
from tests.gateway.inprocess import LIMIT_S


def keys_of(folder: Path) -> dict[str, Any]:
    """Return settings with the keys `user`, `watcher` and `boss`, each with the scope it needs."""
    scopes = {"user": "infer", "watcher": "metrics", "boss": "admin"}
    tables = (
        f'[[key]]\nname = "{name}"\nkey = "{name}"\nscopes = ["{scope}"]\n'
        for name, scope in scopes.items()
    )
    file = folder / "keys.toml"
    file.write_text("\n".join(tables))
    file.chmod(0o600)
    return {"api_key_file": (str(file),)}


def applied(state: State, change: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the state after a change, as a reader of the feed puts it together."""
    result = {name: dict(section) for name, section in state.items()}
    for name, rows in change.items():
        section = result.setdefault(name, {})
        for key, row in rows.items():
            if row is None:
                section.pop(key, None)
            else:
                section[key] = row
    return result


class FeedReader:
    """What one reader has got so far."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self.rights: dict[str, Any] = {}
        self.state: dict[str, dict[str, Any]] = {}
        self.n_events = 0
        self.has_ended = False
        self._lines = lines
        self._kind = ""

    async def next(self) -> None:
        """Take one event."""
        async for line in self._lines:
            if line.startswith("event: "):
                self._kind = line[7:]
            elif line.startswith("data: "):
                self._take(orjson.loads(line[6:]))
                return
        self.has_ended = True

    def _take(self, data: Any) -> None:
        self.n_events += 1
        if self._kind == "reader":
            self.rights = data
        elif self._kind == "state":
            assert not self.state
            self.state = data
        else:
            assert self._kind == "change"
            assert self.state
            assert data, "an empty change says nothing"
            self.state = applied(self.state, data)

    async def until(self, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        """Take events until the state is as wanted."""
        async with asyncio.timeout(LIMIT_S):
            while not (self.state and condition(self.state)):
                await self.next()
                assert not self.has_ended

    async def to_end(self) -> None:
        """Take events until there are no more."""
        async with asyncio.timeout(LIMIT_S):
            while not self.has_ended:
                await self.next()


@asynccontextmanager
async def reading(
    client: httpx.AsyncClient, headers: dict[str, str] | None = None
) -> AsyncIterator[FeedReader]:
    """Read the feed; the first state is there."""
    async with client.stream("GET", "/pool/events", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream"
        reader = FeedReader(response.aiter_lines())
        await reader.until(lambda _: True)
        yield reader
