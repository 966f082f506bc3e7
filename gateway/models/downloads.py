"""Downloads of models into the Hugging Face cache: their progress, and who waits for them."""

import asyncio
import re
from collections.abc import Collection, Mapping
from typing import Any

from gateway.models.events import ModelEvents
from protocol.errors import InvalidRequest
from protocol.process.control import CACHE_SOURCE, DownloadReport

_DOWNLOADING = "downloading"
_NAME = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}(:\w[\w.-]{0,31})?", re.ASCII)


class DownloadBook:
    """The downloads, as the supervisor reports them."""

    def __init__(self, events: ModelEvents) -> None:
        self._events = events
        self._files: dict[str, dict[str, Mapping[str, int]]] = {}
        """Model to its files, and each to its bytes."""
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def expect(self, name: str) -> "asyncio.Future[None]":
        """Return a future that is done when the download has started, or has failed before that."""
        if not _NAME.fullmatch(name):
            raise InvalidRequest("model must be USER/NAME or USER/NAME:QUANT", param="model")
        future = self._waiting.get(name)
        if future is None or future.done():
            future = self._waiting[name] = asyncio.get_running_loop().create_future()
        return future

    def take_report(self, line: DownloadReport) -> None:
        """Store a report of the supervisor, and publish it to the listeners."""
        future = self._waiting.pop(line.model, None)
        if line.has_ended:
            self._end(line, future)
            return
        if future is not None and not future.done():
            future.set_result(None)
        if line.model not in self._files:
            self._files[line.model] = {}
            self._publish(line.model, "model_status", {"status": _DOWNLOADING})
        files = self._files[line.model]
        if line.file:
            files[line.file] = {"done": line.done, "total": line.total}
            self._publish(line.model, "download_progress", {"progress": dict(files)})

    def take_greeting(self, running: Collection[str], found: Collection[str]) -> None:
        """Store which downloads run, and which models there are, after a broken connection."""
        for name in {*self._files, *self._waiting}.difference(running):
            error = "" if name in found else "the supervisor does not know of the download"
            self.take_report(DownloadReport(model=name, has_ended=True, error=error))
        for name in running:
            self.take_report(DownloadReport(model=name))

    def listed(self, created: int) -> list[dict[str, Any]]:
        """Return the downloads as models of GET /models."""
        return [_listed(name, files, created) for name, files in self._files.items()]

    def _end(self, line: DownloadReport, future: "asyncio.Future[None] | None") -> None:
        if future is not None and not future.done():
            problem = line.error or "the download ended at once"
            future.set_exception(InvalidRequest(problem, param="model"))
        if self._files.pop(line.model, None) is not None:
            self._publish(line.model, "download_failed" if line.error else "download_finished")

    def _publish(self, name: str, event: str, data: Mapping[str, Any] | None = None) -> None:
        more = {"data": data} if data is not None else {}
        self._events.publish({"model": name, "event": event, **more})


def _listed(name: str, files: Mapping[str, Mapping[str, int]], created: int) -> dict[str, Any]:
    return {
        "id": name,
        "aliases": [],
        "tags": [],
        "object": "model",
        "owned_by": "llamacpp",
        "created": created,
        "status": {"value": _DOWNLOADING, "args": []},
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "source": CACHE_SOURCE,
        "can_remove": True,
        "progress": dict(files),
    }
