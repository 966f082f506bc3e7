"""The pages at `/` and `/pool`: the built-in one, files of `--path` in front of it, or nothing.

Files that the directory lacks come from the built-in ones, so that a custom page can import
`/completion.js`. Pages need no key: the page asks the user for one and sends it with each request.

Every built-in file has two paths: its own, which browsers ask about each time, and one below
`/ui/DIGEST/`, which they may keep for ever. The page names its parts by the second; it leads from
any digest to the file as it is now, so that a page of the release before still finds its parts.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from stat import S_ISREG
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gateway.http.pages.modules import imported, preload_links
from gateway.http.pages.static_file import ASK_AGAIN, FOREVER, KINDS, StaticFile
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError
from protocol.filenames import expanded, is_dir

_OWN = Path(__file__).parents[2] / "static"
_INDEX = "index.html"
_SCRIPT = "main.js"
_VIEWS = {"chat/view.js": ("/", "/index.html"), "pool/view.js": ("/pool",)}
"""Modules of views to the paths at which the script of the document shows them."""
_WORKER = "/sw.js"
"""It is there without the page, too, as in llama-server: what it removes would stay in browsers."""
_VERSIONED = "/ui/"
_DIGEST = b"{digest}"
"""Stands in `index.html` for the digest of all files."""
_MODULES = b"{modules}"
"""Stands in `index.html` for what names the modules of the view."""
_HEADERS = {
    # All parts come from this server, nothing is sent elsewhere, only DOMPurify makes HTML of
    # text, and no other page may frame one into which users type keys.
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data: blob:",
            "media-src 'self' data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types dompurify",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class _Files(StaticFiles):
    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file; a name that no file can have is not found, nor what may not be read."""
        try:
            found, status = super().lookup_path(path)
        except (OSError, ValueError):  # too long, a loop of links, no permission; a NUL
            return "", None
        if status is not None and S_ISREG(status.st_mode) and not os.access(found, os.R_OK):
            return "", None
        return found, status

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Answer with a file; a folder's path leads to the one with a slash, whatever the prefix.

        Raises `HTTPException`.
        """
        response = await super().get_response(path, scope)
        if isinstance(response, RedirectResponse):
            name = quote(scope["path"].rpartition("/")[2])
            query = scope.get("query_string", b"").decode("latin-1")
            response.headers["location"] = f"./{name}/" + (f"?{query}" if query else "")
        return response


class _OwnRoute(Route):
    """The route of all built-in files: finds one by its path, without an expression for each."""

    def __init__(self, paths: Collection[str], endpoint: Callable[[Request], Any]) -> None:
        super().__init__("/{path:path}", endpoint, methods=["GET"])
        self._paths = paths

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path of a file."""
        return super().matches(scope) if scope["path"] in self._paths else (Match.NONE, {})


@dataclass(frozen=True, slots=True)
class Pages:
    """The files that are served without a key."""

    own: Mapping[str, StaticFile] = field(default_factory=dict)
    """Path in the URL to the built-in file."""
    digest: str = ""
    theirs: StaticFiles | None = None

    def is_page(self, path: str) -> bool:
        """Return whether a path is that of a served file."""
        return path in self.own or self._versioned(path) is not None or self._is_theirs(path)

    def _is_theirs(self, path: str) -> bool:
        if self.theirs is None:
            return False
        name = path.lstrip("/")
        found, status = self.theirs.lookup_path(name)
        if status is not None and Path(found).is_dir():
            found, status = self.theirs.lookup_path(f"{name}/{_INDEX}".lstrip("/"))
        return status is not None and Path(found).is_file()

    def _versioned(self, path: str) -> StaticFile | None:
        """Return the file of a path below `/ui/DIGEST/`."""
        if not path.startswith(_VERSIONED):
            return None
        _, _, name = path.removeprefix(_VERSIONED).partition("/")
        return self.own.get(f"/{name}") if name else None

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the files; they must come after all others."""
        routes: list[BaseRoute] = [_OwnRoute(self.own, self._show)]
        if self.own:
            path = _VERSIONED + "{digest}/{name:path}"
            routes.append(Route(path, self._show_versioned, methods=["GET"]))
        return routes if self.theirs is None else [*routes, Mount("/", self.theirs)]

    async def _show(self, request: Request) -> Response:
        path = request.scope["path"]
        if self.theirs is not None and self._is_theirs(path):
            return await self.theirs.get_response(
                self.theirs.get_path(request.scope), request.scope
            )
        return await self.own[path].response(request, _HEADERS, ASK_AGAIN)

    async def _show_versioned(self, request: Request) -> Response:
        file = self._versioned(request.scope["path"])
        if file is None:
            raise HTTPException(404)
        is_current = request.path_params["digest"] == self.digest
        return await file.response(request, _HEADERS, FOREVER if is_current else ASK_AGAIN)


def open_pages(config: GatewayConfig) -> Pages:
    """Read the files to serve; raises `ConfigError` if `--path` is not a directory."""
    digest, own = _read_own()
    if not config.ui:
        return Pages({_WORKER: own[_WORKER]}, digest)
    if not config.static_path:
        return Pages(own, digest)
    folder = expanded(config.static_path)
    if not is_dir(folder):
        raise ConfigError(f"--path {folder} is not a directory")
    return Pages(own, digest, _Files(directory=folder, html=True))


@cache
def _read_own() -> tuple[str, Mapping[str, StaticFile]]:
    """Return the digest of the built-in files, and the files by their paths in the URL."""
    bodies = {
        path.relative_to(_OWN).as_posix(): path.read_bytes()
        for path in sorted(_OWN.rglob("*"))
        if path.suffix in KINDS and path.is_file()
    }
    listed = b"".join(name.encode() + b"\0" + body for name, body in bodies.items())
    digest = hashlib.sha256(listed).hexdigest()[:16]
    files = {f"/{name}": StaticFile(name, body) for name, body in bodies.items()}
    for view, paths in _VIEWS.items():
        files |= dict.fromkeys(paths, _document(bodies, digest, view))
    return digest, files


def _document(bodies: Mapping[str, bytes], digest: str, view: str) -> StaticFile:
    """Return the document that shows a view, with the digest and the modules in it."""
    links = preload_links(imported(bodies, _SCRIPT, view), f"ui/{digest}/")
    body = bodies[_INDEX].replace(_MODULES, links.encode())
    return StaticFile(_INDEX, body.replace(_DIGEST, digest.encode()))
