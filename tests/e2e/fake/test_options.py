"""Options on a whole pool: a unit file of 2024 still starts, and what it says is done."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.seed_options import FOREIGN, uses
from tests.e2e.process import python
from tests.e2e.served import Served

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "pool.toml"
    path.write_text('[[worker]]\nbackend = "fake"\n')
    return path


@pytest.fixture
def served(config: Path, tmp_path: Path) -> Iterator[Served]:
    """Serve with every foreign option and a handful of ours."""
    foreign = [word for use in uses(FOREIGN) for word in use]
    ours = ["--port", "0", "-a", "b,a", "--tags", "t", "--api-prefix", "/p", "--log-disable"]
    more = ["--log-file", str(tmp_path / "log"), "-n", "3", "--slots-endpoint-disable", "-cb"]
    args = ["serve", "--config", str(config), *foreign, *ours, *more]
    one = Served(python("-m", "worker.cli", *args))
    try:
        yield one.wait_until_ready()
    finally:
        one.close()


def test_a_unit_file_with_everything_in_it_starts_with_one_warning(
    served: Served, tmp_path: Path
) -> None:
    assert served.url.endswith("/p")
    models = served.client.get("/v1/models").json()["data"]
    assert [(one["id"], one["aliases"], one["tags"]) for one in models] == [
        ("a", ["a", "b"], ["t"])
    ]
    answer = served.client.post("/completion", json={"prompt": "x"}).json()
    assert answer["tokens_predicted"] == 3
    assert served.client.get("/slots").status_code == 501
    served.signal(signal.SIGTERM)
    assert served.wait() == 0
    (warning,) = [line for line in served.lines if "WARNING" in line]
    assert "without effect, options of other programs: -co --no-display-prompt" in warning
    assert "request done" not in served.text
    log = (tmp_path / "log").read_text()
    assert warning in log
    assert "a-1 worker.process ready" in log
    assert "gateway.server listening" in log


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--path", "no/such/dir"], 78, "/no/such/dir is not a directory"),
        (["--ssl-key-file", "k"], 78, "belong together"),
        (["--sleep-idle-seconds", "0"], 78, "--sleep-idle-seconds must be more than 0, or -1"),
        (["--log-file", "no/such/dir/log"], 78, "cannot write log file"),
        (["--api-prefix", "llama"], 78, "--api-prefix llama: must be a path"),
        (["--api-key-file", "no/keys"], 78, 'cause="cannot read api_key_file'),
        (["--nonsense"], 2, "No such option"),
    ],
)
def test_what_cannot_be_done_ends_the_start(
    config: Path, args: list[str], code: int, message: str
) -> None:
    one = Served(python("-m", "worker.cli", "serve", "--config", str(config), "--port", "0", *args))
    try:
        assert one.wait() == code
        assert one.text.count(message) == 1
        assert "Traceback" not in one.text and "standard error" not in one.text
    finally:
        one.close()


def test_a_full_runtime_directory_ends_the_start(config: Path) -> None:
    """No file may have a byte: as on a full disk."""
    serve = [*python("-m", "worker.cli", "serve"), "--config", str(config), "--port", "0"]
    one = Served(["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *serve])
    try:
        assert one.wait() == 78
        assert "pool.json: File too large; make room, or name another folder" in one.text
        assert "Traceback" not in one.text
    finally:
        one.close()
