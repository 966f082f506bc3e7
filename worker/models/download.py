"""`python -m worker.models.download NAME`: fetches a repository's model for the supervisor.

It writes its start, its progress and its error to standard output, one JSON object a line. The
files are in the Hugging Face cache afterwards.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from protocol.errors import ConfigError
from protocol.process.parent_death import die_with_parent
from worker.files.hub import Repository

_INTERVAL_S = 0.5
"""Seconds between two reports of a download."""
BEGIN_S = 60
"""Limit for the hub to list the files, because its package may wait without end."""


class ProgressBar:
    """Replaces the tqdm bar that the hub's package would draw."""

    def __init__(self, tell: Callable[[int, int], None], total: int, initial: int) -> None:
        self._tell = tell
        self.total, self.n = total, initial
        self._told_s = 0.0

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._tell(self.n, self.total)

    def update(self, n: float = 1) -> None:
        """Count bytes, and report them every half second."""
        self.n += int(n)
        if time.monotonic() - self._told_s >= _INTERVAL_S:
            self._told_s = time.monotonic()
            self._tell(self.n, self.total)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Do nothing for the other methods of a bar."""
        return lambda *_, **__: None


def bars(file: str, say: Callable[..., None]) -> Callable[..., ProgressBar]:
    """Return the function that makes the bar of a file."""

    def make(*_: Any, total: int | None = None, initial: int = 0, **__: Any) -> ProgressBar:
        def tell(done: int, of: int) -> None:
            say(file=file, done=done, total=of)

        return ProgressBar(tell, int(total or 0), int(initial or 0))

    return make


def download(name: str, say: Callable[..., None]) -> None:
    """Fetch a model and its projector; raises `ConfigError`. Only in the main thread."""
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(BEGIN_S)
    hub = Repository(name, token=os.environ.get("HF_TOKEN", ""), offline=False)
    model = hub.name_of_model()
    files = [model, hub.name_of_projector(model)]
    signal.alarm(0)
    say()
    for file in filter(None, files):
        hub.fetch(file, bars(file, say))


def _give_up(*_: object) -> None:
    raise ConfigError(f"the hub did not answer within {BEGIN_S} s")


def main() -> None:
    """Fetch the model that the command line names."""
    try:
        download(sys.argv[1], _say)
    except ConfigError as error:
        _say(error=str(error))
        sys.exit(1)


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    die_with_parent()
    main()
