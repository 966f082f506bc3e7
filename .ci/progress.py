"""Run a long build and tell how far it is: `progress.py LOG COMMAND...`.

All output of the command goes to the file LOG. A terminal sees one line that is rewritten each
second: the step of ninja or make that runs, and the seconds since the start. Anything else gets a
line each 15 seconds. A command that fails leaves the end of its output here; its exit code is ours.
"""

import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

STEP = re.compile(r"\[\s*\d+(?:/\d+|%)\]")
LAST_LINES = 40


def main() -> int:
    """Run the command; return its exit code."""
    log, *command = sys.argv[1:]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines.put))
    reader.start()
    with Path(log).open("w") as file:
        _follow(reader, lines, file.write)
    if process.wait():
        last = Path(log).read_text().splitlines()[-LAST_LINES:]
        print(*last, f"failed: all output is in {log}", sep="\n", file=sys.stderr)  # noqa: T201
    return process.returncode


def _read(process: subprocess.Popen[str], put: Callable[[str], None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        put(line)


def _follow(
    reader: threading.Thread, lines: "queue.Queue[str]", keep: Callable[[str], object]
) -> None:
    """Keep each line, and tell from time to time how far it is, until the output ends."""
    is_terminal = sys.stdout.isatty()
    interval_s = 1 if is_terminal else 15
    started = told = time.monotonic()
    step = "preparing"
    while reader.is_alive() or not lines.empty():
        try:
            line = lines.get(timeout=0.2)
        except queue.Empty:
            line = ""
        keep(line)
        if found := STEP.search(line):
            step = found[0]
        now = time.monotonic()
        if now - told >= interval_s:
            told = now
            text = f"  {step} after {now - started:.0f} s"
            sys.stdout.write(f"\r{text:<40}" if is_terminal else f"{text}\n")
            sys.stdout.flush()
    if is_terminal:
        sys.stdout.write(f"\r{'':<40}\r")


if __name__ == "__main__":
    sys.exit(main())
