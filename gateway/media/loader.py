"""Loads the media that a request gives by URL, and puts them into its plan."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gateway.api.fields.media_links import MediaLink
from gateway.api.reply import RequestPlan
from gateway.http.bodies.body import BodyReservation
from gateway.http.disconnect import together
from gateway.media.allow import AllowedUrls
from gateway.media.fetch import Fetcher, NotFetched
from gateway.media.files import SCHEME, read_file
from gateway.media.places import FetchPlaces
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError, InvalidRequest
from protocol.filenames import is_dir

_AT_ONCE = 16
"""Concurrent fetches, over all requests; what they hold counts when they are done."""
_READERS = 4
"""Threads that read files: those of a dead network file system keep no other threads."""
_NO_FILES = "file:// URLs are not allowed unless --media-path is specified"
_NO_HOSTS = "this server fetches nothing (--media-url-allow names hosts that it may fetch from)"


class MediaLoader:
    """Fetches and reads what the configuration allows; by default nothing."""

    def __init__(self, config: GatewayConfig) -> None:
        """Read the configuration; raises `ConfigError`."""
        self._max_bytes = config.limits.image_mib << 20
        self._folder = Path(config.media_path) if config.media_path else None
        if self._folder is not None and not is_dir(self._folder):
            raise ConfigError(f"--media-path {self._folder} is not a directory")
        allowed = AllowedUrls(config.media_url_allow)
        self._fetcher = Fetcher(allowed, self._max_bytes, config.limits.fetch_s)
        self._fetches = bool(allowed)
        self._places = FetchPlaces(_AT_ONCE)
        self._readers = ThreadPoolExecutor(_READERS, "read-media")

    async def fill(self, plan: RequestPlan, held: BodyReservation) -> RequestPlan:
        """Return the plan with all its media; raises like `load`."""
        if not plan.links:
            return plan
        media = await self.load(plan.links, plan.tasks[0].media, held)
        return replace(plan, tasks=tuple(replace(task, media=media) for task in plan.tasks))

    async def load(
        self, links: Sequence[MediaLink], media: tuple[bytes, ...], held: BodyReservation
    ) -> tuple[bytes, ...]:
        """Return media with what the links name in its place; their bytes count as the body's.

        Raises `InvalidRequest`, or `TaskError` if the server holds too much.
        """
        if not links:
            return media
        # A dialog may contain the same picture in each turn: it is fetched once.
        first = {(link.url, link.kind): link for link in links}
        loaded = await together(self._load(link, held) for link in first.values())
        data = dict(zip(first, loaded, strict=True))
        found = {link.place: data[link.url, link.kind] for link in links}
        return tuple(found.get(i, own) for i, own in enumerate(media))

    async def _load(self, link: MediaLink, held: BodyReservation) -> bytes:
        try:
            data = await self._read(link, held.tenant)
        except (NotFetched, ValueError) as error:
            raise InvalidRequest(f"Field '{link.param}': {error}", param=link.param) from error
        held.take(len(data))
        return data

    async def _read(self, link: MediaLink, tenant: str) -> bytes:
        if link.url.startswith(SCHEME):
            if self._folder is None:
                raise ValueError(_NO_FILES)
            loop, arguments = asyncio.get_running_loop(), (link.url, self._max_bytes)
            return await loop.run_in_executor(self._readers, read_file, self._folder, *arguments)
        if not self._fetches:
            raise NotFetched(_NO_HOSTS)
        async with self._places.place(tenant):
            return await self._fetcher.get(link.url, link.kind)
