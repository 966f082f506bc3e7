"""Downloads as processes of the supervisor, with other programs for the one that fetches."""

import os
import selectors
import sys
from collections.abc import Iterator

import pytest

from protocol.process.control import DownloadReport, Line
from worker.supervisor.children.launch import Launch, download
from worker.supervisor.downloads import MAX_DOWNLOADS, ModelDownloads

LIMIT_S = 30.0


class Bench:
    """Downloads with a loop of their own; `code` is what each process runs."""

    def __init__(self) -> None:
        self.code = ""
        self.told: list[Line | str] = []
        self.selector = selectors.DefaultSelector()
        self.downloads = ModelDownloads(self.told.append, self._fetched, self._command)
        self.downloads.open(self.selector)

    def _fetched(self) -> None:
        self.told.append("fetched")

    def _command(self, model: str) -> Launch:
        return Launch(name=model, argv=(sys.executable, "-c", self.code), env=dict(os.environ))

    def turn(self) -> None:
        for key, _ in self.selector.select(LIMIT_S):
            key.data()

    def finish(self) -> None:
        while self.selector.get_map():
            self.turn()


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    found.downloads.close()
    found.selector.close()


def test_what_the_process_says_is_reported_and_the_list_is_read_before_the_end(
    bench: Bench,
) -> None:
    bench.code = (
        "print('{}'); print('not JSON'); print('[]'); print('{\"file\": 1, \"no\": 2}');"
        'print(\'{"file": "m", "done": 1, "total": 2}\')'
    )
    bench.downloads.start("u/m")
    bench.finish()
    assert bench.told == [
        DownloadReport(model="u/m"),
        DownloadReport(model="u/m", file="m", done=1, total=2),
        "fetched",
        DownloadReport(model="u/m", has_ended=True),
    ]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ('print(\'{"error": "no such model"}\'); exit(1)', "no such model"),
        ("exit(3)", "the download ended with exit code 3"),
        ("import os; os.abort()", "the download ended with exit code -6"),
    ],
)
def test_why_it_failed_is_told(bench: Bench, code: str, error: str) -> None:
    bench.code = code
    bench.downloads.start("u/m")
    bench.finish()
    assert bench.told == [DownloadReport(model="u/m", has_ended=True, error=error)]


def test_one_that_cannot_start_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    bench.downloads.start("u/m")
    (told,) = bench.told
    assert isinstance(told, DownloadReport)
    assert told.error == "cannot start /no/such/python: No such file or directory"


def test_one_is_given_up_and_not_started_twice(bench: Bench) -> None:
    bench.code = "import time; print('{}', flush=True); time.sleep(600)"
    bench.downloads.start("u/m")
    while not bench.told:
        bench.turn()
    bench.downloads.start("u/m")
    assert bench.told == [DownloadReport(model="u/m")] * 2
    assert bench.downloads.cancel("u/m")
    assert not bench.downloads.cancel("u/other")
    bench.finish()
    assert bench.told[2:] == [
        DownloadReport(model="u/m", has_ended=True, error="the download was cancelled")
    ]


def test_there_is_a_limit(bench: Bench) -> None:
    bench.code = "import time; time.sleep(600)"
    for number in range(MAX_DOWNLOADS + 1):
        bench.downloads.start(f"u/m{number}")
    (told,) = bench.told
    assert told == DownloadReport(
        model=f"u/m{MAX_DOWNLOADS}",
        has_ended=True,
        error="too many models are being downloaded",
    )


def test_the_process_gets_the_token_but_not_the_options_of_the_pool() -> None:
    environ = {"LLAMA_ARG_PORT": "1", "LLAMA_CACHE": "/c", "HF_TOKEN": "other"}
    launch = download("u/m", environ, "T")
    assert launch.argv[-3:] == ("-m", "worker.models.download", "u/m")
    assert (launch.env["LLAMA_CACHE"], launch.env["HF_TOKEN"]) == ("/c", "T")
    assert "LLAMA_ARG_PORT" not in launch.env
