"""Models that are not here: fetched by URL or repository, or a reason why not."""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.settings.download import fetched, located


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A web server with one file."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "m.gguf").write_bytes(b"GGUF!")
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_file_is_fetched_once_into_models(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    worker = WorkerConfig(model_url=f"{url}/m.gguf?download=1", hf_token="secret")
    done = fetched(worker)
    assert (done.model, done.model_url, done.hf_token) == ("models/m.gguf", "", "")
    assert Path(done.model).read_bytes() == b"GGUF!"
    assert [path.name for path in Path("models").iterdir()] == ["m.gguf"]
    Path(done.model).write_bytes(b"ours")
    assert fetched(worker).model == done.model
    assert Path(done.model).read_bytes() == b"ours"


def test_the_file_goes_where_the_model_is_said_to_be(url: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.gguf"
    assert fetched(WorkerConfig(model=str(path), model_url=f"{url}/m.gguf")).model == str(path)
    assert path.read_bytes() == b"GGUF!"


def test_what_cannot_be_fetched_ends_the_start_with_the_remedy(url: str, tmp_path: Path) -> None:
    def refused(**fields: object) -> str:
        with pytest.raises(ConfigError) as caught:
            fetched(WorkerConfig(model=str(tmp_path / "x.gguf"), **fields))  # type: ignore[arg-type]
        assert list(tmp_path.glob("*.part")) == []
        return str(caught.value)

    assert "put the file at" in refused(model_url=f"{url}/none.gguf")
    assert "put the file at" in refused(model_url="http://127.0.0.1:1/m.gguf")
    assert "--offline forbids it" in refused(model_url=f"{url}/m.gguf", offline=True)
    assert "must be the http(s) address" in refused(model_url="file:///etc/passwd")
    assert "must be the http(s) address" in refused(model_url=url)
    assert "--hf-file needs --hf-repo" in refused(hf_file="m.gguf")


def test_looking_at_a_configuration_fetches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    unreachable = "http://127.0.0.1:1/m.gguf"
    worker = WorkerConfig(model=str(path), model_url=unreachable)
    assert located(worker) == worker
    assert located(WorkerConfig(model_url=unreachable)).model == "models/m.gguf"
    hub = WorkerConfig(hf_repo="user/model", hf_file="m.gguf")
    assert located(hub) == hub
    with pytest.raises(ConfigError, match="must be the http"):
        located(WorkerConfig(model_url="ftp://127.0.0.1/m.gguf"))
    path.write_bytes(b"GGUF!")
    assert located(worker) == WorkerConfig(model=str(path))
    assert located(WorkerConfig()) == WorkerConfig()


def test_a_projector_is_fetched_as_a_model_is(url: str, tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    worker = WorkerConfig(model="m.gguf", mmproj=str(path), mmproj_url=f"{url}/m.gguf")
    assert located(worker) == worker
    done = fetched(worker)
    assert (done.mmproj, done.mmproj_url, done.model) == (str(path), "", "m.gguf")
    assert path.read_bytes() == b"GGUF!"
    assert located(worker) == done
    with pytest.raises(ConfigError, match="--mmproj-url x: must be the http"):
        fetched(WorkerConfig(model="m.gguf", mmproj_url="x"))
