"""Writes to standard error: log lines, and on a terminal a progress bar for each loading model.

Writing never blocks, because a stopped terminal or a full pipe must not stop the supervisor.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protocol.process.log_stream import LogStream

_BAR_WIDTH = 30
"""Characters of a bar."""
_MAX_BARS = 8
"""Workers that are shown at once."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One loading model."""

    name: str
    fraction: float


class Console:
    """Standard error, shared by the log, the children's output and the bars."""

    def __init__(self, fd: int, *, is_terminal: bool) -> None:
        self.is_terminal = is_terminal
        self._fd = fd
        self._stream = LogStream(fd)
        self._bars: tuple[Bar, ...] = ()
        self._n_drawn = 0

    def is_hung_up(self) -> bool:
        """Whether the terminal that this process was started on is gone."""
        return self.is_terminal and not os.isatty(self._fd)

    def write(self, text: str) -> int:
        """Write text as a log handler does."""
        self.lines(text.encode())
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def lines(self, data: bytes) -> None:
        """Write whole lines above the bars."""
        if data:
            self._stream.put(self._erase() + data + self._draw())

    def show(self, text: str) -> None:
        """Write a text if standard error is a terminal."""
        if self.is_terminal:
            self.lines(text.encode())

    def bars(self, bars: Iterable[Bar]) -> None:
        """Show these bars in place of the last ones; only on a terminal."""
        new = tuple(bars)
        if self.is_terminal and new != self._bars:
            erase = self._erase()
            self._bars = new
            self._stream.put(erase + self._draw())

    def _erase(self) -> bytes:
        n, self._n_drawn = self._n_drawn, 0
        return f"\x1b[{n}F\x1b[J".encode() if n else b""

    def _draw(self) -> bytes:
        shown = self._bars[:_MAX_BARS]
        width = shutil.get_terminal_size().columns if shown else 0
        rows = [bar_row(bar, shown, width) for bar in shown]
        if len(self._bars) > len(shown):
            rows.append(f"… and {len(self._bars) - len(shown)} more")
        self._n_drawn = len(rows)
        return "".join(f"{row}\n" for row in rows).encode()


def bar_row(bar: Bar, shown: Sequence[Bar], width: int) -> str:
    """Draw one bar, names aligned, within `width` columns."""
    name = bar.name.ljust(max(len(other.name) for other in shown))
    filled = int(_BAR_WIDTH * min(1.0, bar.fraction))
    row = f"{name} [{'#' * filled}{' ' * (_BAR_WIDTH - filled)}] {bar.fraction:4.0%}"
    return row[: max(width - 1, 0)]
