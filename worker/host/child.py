"""Runs code that may crash or hang in a child process, with a time limit."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

_KEPT_CHARS = 2000
"""Characters of standard error that are kept, the last ones."""


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """How a child ended, and its facts."""

    code: int | None
    """As `Popen.returncode`; None after a time-out."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The JSON object on the last line of its standard output; empty if there is none."""
    stderr: str = ""
    """The end of its standard error."""

    @property
    def last_line(self) -> str:
        """Return the last line that is not empty."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def run(
    argv: Sequence[str], env: Mapping[str, str], limit_s: float, stdin: bytes = b""
) -> ChildOutcome:
    """Run a command, or kill it with all its children after the limit; never raises."""
    with _file() as given, _file() as out, _file() as err:
        given.write(stdin)
        given.seek(0)
        try:
            process = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=given,
                stdout=out,  # files, not pipes: a grandchild could keep a pipe open
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            return ChildOutcome(127, stderr=f"cannot start {argv[0]}: {error.strerror}")
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)  # a process that waits for a device may survive the signal
        return ChildOutcome(code, _facts(_end_of(out, 2**20)), _end_of(err, _KEPT_CHARS))


def _file() -> BinaryIO:
    """Make a file in memory: there may be no folder that can be written, and secrets stay here."""
    return os.fdopen(os.memfd_create("llamapool"), "w+b", buffering=0)


def _end_of(file: BinaryIO, n_bytes: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - n_bytes))
    return file.read().decode(errors="replace")


def _facts(text: str) -> dict[str, Any]:
    try:
        facts = json.loads(text.strip().rpartition("\n")[2])
    except ValueError:
        return {"text": text} if text else {}
    return facts if isinstance(facts, dict) else {"text": text}
