"""The pages at `/`: the built-in page, files of `--path` in front of it, or nothing.

Files that the directory lacks come from the built-in ones, so that a custom page can import
`/completion.js`. Pages need no key: the page asks the user for one and sends it with each request.
"""

import mimetypes
import os
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError

_OWN = Path(__file__).parents[1] / "static"
_HEADERS = {
    # All parts come from this server, and no other page may frame one into which users type keys.
    "Content-Security-Policy": (
        "default-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class _Files(StaticFiles):
    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file; a NUL in the name is not found, where the system calls would raise."""
        return ("", None) if "\0" in path else super().lookup_path(path)


@dataclass(frozen=True, slots=True)
class Pages:
    """The files that are served without a key."""

    own: dict[str, Path] = field(default_factory=dict)
    """Path in the URL to the built-in file."""
    theirs: StaticFiles | None = None

    def is_page(self, path: str) -> bool:
        """Return whether a path is that of a served file."""
        return path in self.own or self._is_theirs(path)

    def _is_theirs(self, path: str) -> bool:
        if self.theirs is None:
            return False
        name = path.lstrip("/")
        found, status = self.theirs.lookup_path(name)
        if status is not None and Path(found).is_dir():
            found, status = self.theirs.lookup_path(f"{name}/index.html".lstrip("/"))
        return status is not None and Path(found).is_file()

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the files; they must come after all others."""
        routes: list[BaseRoute] = [Route(path, self._show, methods=["GET"]) for path in self.own]
        return routes if self.theirs is None else [*routes, Mount("/", self.theirs)]

    async def _show(self, request: Request) -> Response:
        if self.theirs is not None and self._is_theirs(request.url.path):
            return await self.theirs.get_response(
                self.theirs.get_path(request.scope), request.scope
            )
        path = self.own[request.url.path]
        kind = mimetypes.guess_type(path.name)[0]
        return Response(path.read_bytes(), 200, _HEADERS, kind)


def open_pages(config: GatewayConfig) -> Pages:
    """Find the files to serve; raises `ConfigError` if `--path` is not a directory."""
    if not config.ui:
        return Pages()
    files = {f"/{path.name}": path for path in sorted(_OWN.iterdir()) if path.is_file()}
    own = {"/": _OWN / "index.html", **files}
    if not config.static_path:
        return Pages(own=own)
    folder = Path(config.static_path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"--path {folder} is not a directory")
    return Pages(own=own, theirs=_Files(directory=folder, html=True))
