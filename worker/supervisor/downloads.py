"""Models that are fetched into the Hugging Face cache by order of a gateway.

Each download is a separate process, because the hub's package is large and may hang. It reports its
progress on a pipe; the gateways get reports, and read the list of models again at its end.
"""

import json
import os
import selectors
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from protocol.process.control import DownloadReport, Line
from worker.supervisor.children.launch import Launch

MAX_DOWNLOADS = 4
"""Downloads at the same time."""
_CHUNK = 65536
"""Bytes read at once."""
_LONGEST_LINE = 1 << 20
"""Bytes of a line; a longer one is dropped."""


@dataclass(slots=True, eq=False)
class _Running:
    model: str
    process: "subprocess.Popen[bytes]"
    unread: bytes = b""
    error: str = ""


class ModelDownloads:
    """The downloads of one supervisor."""

    def __init__(
        self,
        report: Callable[[Line], None],
        fetched: Callable[[], None],
        command: Callable[[str], Launch],
    ) -> None:
        """`fetched` is called before a successful end, `command` returns the process to start."""
        self._report = report
        self._fetched = fetched
        self._command = command
        self._selector: selectors.BaseSelector | None = None
        self._running: dict[str, _Running] = {}

    def open(self, selector: selectors.BaseSelector) -> None:
        """Read the downloads' output with this selector, that of the supervisor's loop."""
        self._selector = selector

    @property
    def running(self) -> tuple[str, ...]:
        """The models that are being fetched."""
        return tuple(self._running)

    def start(self, model: str) -> None:
        """Begin a download, unless it runs already; its reports follow."""
        if model in self._running:
            self._report(DownloadReport(model=model))
            return
        if len(self._running) >= MAX_DOWNLOADS:
            self._end(model, "too many models are being downloaded")
            return
        start = self._command(model)
        try:
            process = subprocess.Popen(  # our own program
                start.argv, env=start.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
            )
        except OSError as error:
            self._end(model, f"cannot start {start.argv[0]}: {error.strerror}")
            return
        assert self._selector is not None and process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        download = self._running[model] = _Running(model, process)
        self._selector.register(process.stdout, selectors.EVENT_READ, lambda: self._read(download))

    def cancel(self, model: str) -> bool:
        """Cancel a download; return False if there is none."""
        if (download := self._running.get(model)) is None:
            return False
        download.error = "the download was cancelled"
        download.process.kill()
        return True

    def close(self) -> None:
        """Cancel all downloads; the selector may be closed already."""
        for download in list(self._running.values()):
            self._reap(download)

    def _read(self, download: _Running) -> None:
        assert download.process.stdout is not None
        data = os.read(download.process.stdout.fileno(), _CHUNK)
        *lines, download.unread = (download.unread + data).split(b"\n")
        for line in lines:
            self._take(download, line)
        if len(download.unread) > _LONGEST_LINE:
            download.unread = b""
        if not data:
            self._finish(download)

    def _take(self, download: _Running, line: bytes) -> None:
        try:
            report = json.loads(line)
            if error := report.pop("error", ""):
                download.error = download.error or str(error)
            else:
                self._report(DownloadReport(model=download.model, **report))
        except (ValueError, TypeError, AttributeError):
            return  # a library has written to standard output

    def _finish(self, download: _Running) -> None:
        assert self._selector is not None and download.process.stdout is not None
        self._selector.unregister(download.process.stdout)
        code = self._reap(download)
        failure = f"the download ended with exit code {code}" if code else ""
        self._end(download.model, download.error or failure)

    def _reap(self, download: _Running) -> int:
        """Forget a download; end its process, if it has only closed its output."""
        assert download.process.stdout is not None
        download.process.stdout.close()
        download.process.kill()
        del self._running[download.model]
        return download.process.wait()

    def _end(self, model: str, error: str) -> None:
        if not error:
            self._fetched()
        self._report(DownloadReport(model=model, has_ended=True, error=error))
