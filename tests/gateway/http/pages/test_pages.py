"""What a browser gets at `/`: the built-in page, a directory of one's own, or nothing."""

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.http.pages.pages import open_pages
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError
from tests.gateway.inprocess import running

pytestmark = pytest.mark.slow

MODULES = ("/completion.js", "/index.js", "/json-schema-to-grammar.mjs")
"""What pages for llama-server of 2023 and 2024 import."""


async def test_the_page_and_its_files_need_no_key_and_load_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, api_key=("secret",)) as gateway:
        for path in ("/", "/index.html", "/pool", "/main.js", "/shared/base.css", *MODULES):
            answer = await gateway.client.get(path)
            assert answer.status_code == 200, path
            assert "http://" not in answer.text and "https://" not in answer.text
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'") and "unsafe" not in policy
        assert (await gateway.client.get("/")).headers["content-type"].startswith("text/html")
        assert (await gateway.client.get("/v1/models")).status_code == 401
        assert (await gateway.client.post("/")).status_code == 401


async def test_a_page_is_only_fetched_and_its_path_is_the_whole_path(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        assert (await gateway.client.head("/main.js")).status_code == 200
        assert (await gateway.client.post("/main.js")).status_code == 404
        for path in ("/main.js%0A", "/main.js/", "/a/main.js"):
            assert (await gateway.client.get(path)).status_code == 404, path


async def test_without_the_page_its_paths_are_not_found(tmp_path: Path) -> None:
    async with running(tmp_path, ui=False) as gateway:
        for path in ("/", "/completion.js"):
            answer = await gateway.client.get(path)
            assert answer.status_code == 404
            assert answer.json()["error"]["message"] == "File Not Found"


@pytest.mark.parametrize("ui", [True, False])
async def test_the_service_worker_of_llama_servers_page_is_removed(
    tmp_path: Path, ui: bool
) -> None:
    async with running(tmp_path, ui=ui, api_key=("secret",)) as gateway:
        answer = await gateway.client.get("/sw.js")
        assert answer.status_code == 200 and "registration.unregister()" in answer.text
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["content-type"].startswith("text/javascript")


async def test_a_directory_of_ones_own_takes_the_pages_place(tmp_path: Path) -> None:
    folder = tmp_path / "www"
    (folder / "sub").mkdir(parents=True)
    (folder / "index.html").write_text("mine")
    (folder / "sub" / "a.js").write_text("export {}")
    (folder / "health").write_text("never shown: an endpoint goes first")
    (tmp_path / "secret.txt").write_text("outside")
    async with running(tmp_path, static_path=str(folder), api_key=("secret",)) as gateway:
        assert (await gateway.client.get("/")).text == "mine"
        assert (await gateway.client.get("/sub/a.js")).text == "export {}"
        assert (await gateway.client.get("/health")).status_code == 503
        for path in ("/nothing", "/sub/", "/..%2fsecret.txt", "/%00"):
            assert (await gateway.client.get(path)).status_code == 401, path
        key = {"Authorization": "Bearer secret"}
        (folder / "loop").symlink_to("loop")
        odd = ("/" + "a" * 300, "/" + "a/" * 3000, "/loop", "/loop/x", "/%ff", "/index.html/x")
        for path in ("/nothing", "/..%2fsecret.txt", "/%00", *odd):
            assert (await gateway.client.get(path)).status_code == 401, path
            answer = await gateway.client.get(path, headers=key)
            assert answer.status_code == 404, path
            assert answer.json()["error"]["type"] == "not_found_error"
        assert (await gateway.client.post("/", headers=key)).status_code == 404


async def test_what_a_directory_lacks_comes_from_the_built_in_files(tmp_path: Path) -> None:
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "completion.js").write_text("export const mine = 1")
    async with running(tmp_path, static_path=str(folder), api_key=("secret",)) as gateway:
        assert (await gateway.client.get("/completion.js")).text == "export const mine = 1"
        module = await gateway.client.get("/json-schema-to-grammar.mjs")
        assert module.headers["content-type"].startswith("text/javascript")
        assert "export class SchemaConverter" in module.text
        assert (await gateway.client.get("/")).headers["content-type"].startswith("text/html")
        (folder / "index.html").write_text("mine")
        assert (await gateway.client.get("/")).text == "mine"


async def test_a_file_that_may_not_be_read_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.html").write_text("x")
    access = os.access  # tests may run as root, who may read anything

    def readable(path: str, mode: int) -> bool:
        return not str(path).endswith("secret.html") and access(path, mode)

    monkeypatch.setattr(os, "access", readable)
    async with running(tmp_path, static_path=str(tmp_path)) as gateway:
        assert (await gateway.client.get("/secret.html")).status_code == 404


async def test_a_folder_leads_to_its_page_below_the_prefix(tmp_path: Path) -> None:
    (tmp_path / "docs ü").mkdir()
    (tmp_path / "docs ü" / "index.html").write_text("mine")
    async with running(tmp_path, static_path=str(tmp_path), api_prefix="/llama") as gateway:
        answer = await gateway.client.get("/docs ü?a=b", follow_redirects=True)
        assert answer.text == "mine"
        assert str(answer.url) == gateway.url + "/docs%20%C3%BC/?a=b"


def test_a_directory_that_is_none_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a directory"):
        open_pages(GatewayConfig(static_path=str(tmp_path / "none")))


async def test_everything_lives_below_the_prefix(tmp_path: Path) -> None:
    async with running(tmp_path, api_prefix="/llama/", api_key=("secret",)) as gateway:
        assert gateway.url.endswith("/llama")
        root = gateway.url.removesuffix("/llama")
        assert (await gateway.client.get(f"{root}/llama/health")).status_code == 503
        assert (await gateway.client.get(f"{root}/llama/")).status_code == 200
        assert (await gateway.client.get(f"{root}/llama/slots")).status_code == 401
        for path in ("/health", "/llama", "/", "/llamas/health"):
            assert (await gateway.client.get(f"{root}{path}")).status_code == 404, path


_SCRIPT = """
import { llama, llamaComplete, llamaEventTarget, llamaModelInfo, llamaPromise } from '%s';
const config = { api_url: process.argv[2] };
const params = { n_predict: 4, api_key: 'secret' };
let text = '';
for await (const chunk of llama('a b c', params, config)) text += chunk.data.content;
const whole = await llamaPromise('a b c', params, config);
const target = llamaEventTarget('a b c', params, config);
const told = await new Promise((done) => target.addEventListener('done', (e) => done(e.detail)));
const info = await llamaModelInfo({ ...config, api_key: 'secret' });
let refusal = '';
try { await llamaPromise('a', {}, config); } catch (error) { refusal = error.message; }
console.log(JSON.stringify([text, whole, told.content, typeof info.n_ctx, refusal,
  typeof llamaComplete]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_completion_js_speaks_to_the_server_as_the_old_page_did(tmp_path: Path) -> None:
    module = Path(__file__).parents[4] / "gateway" / "static" / "completion.js"
    copy = tmp_path / "completion.mjs"
    copy.write_text(module.read_text())
    script = tmp_path / "script.mjs"
    script.write_text(_SCRIPT % copy.as_uri())

    async with running(tmp_path, api_key=("secret",)) as gateway:
        await gateway.add_worker()
        process = await asyncio.create_subprocess_exec(
            "node", str(script), gateway.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out.decode().strip() == (
        '["a b c","a b c","a b c","number","Invalid API Key","function"]'
    )


async def test_parts_of_the_page_are_kept_for_ever_and_sent_once(tmp_path: Path) -> None:
    async with running(tmp_path, api_key=("secret",)) as gateway:
        get = gateway.client.get
        page = (await get("/")).text
        part = re.findall(r'src="(ui/[0-9a-f]{16}/main.js)"', page)[0]
        first = await get(f"/{part}")
        assert first.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert first.headers["content-encoding"] == "gzip"
        assert first.headers["vary"] == "Accept-Encoding"
        plain = await get(f"/{part}", headers={"Accept-Encoding": "gzip;q=0"})
        assert "content-encoding" not in plain.headers and plain.text == first.text
        assert plain.headers["etag"] != first.headers["etag"]
        old = await get("/ui/0123456789abcdef/main.js")
        assert old.headers["cache-control"] == "no-cache" and old.text == first.text
        for tag in (f"W/{first.headers['etag']}", f'"x", {first.headers["etag"]}', "*"):
            again = await get("/main.js", headers={"If-None-Match": tag})
            assert (again.status_code, again.content) == (304, b"")
        changed = await get("/main.js", headers={"If-None-Match": '"x"'})
        assert changed.status_code == 200


async def test_below_the_digest_there_is_nothing_but_the_files(tmp_path: Path) -> None:
    async with running(tmp_path, api_key=("secret",)) as gateway:
        paths = ("/ui/", "/ui/x", "/ui/x/", "/ui/x/nothing.js", "/ui/x/../../http/pages/pages.py")
        for path in (*paths, "/ui/x/vendor/manifest.json", "/ui/x/%00", "/ui/x//etc/passwd"):
            assert (await gateway.client.get(path)).status_code == 401, path
            answer = await gateway.client.get(path, headers={"Authorization": "Bearer secret"})
            assert answer.status_code == 404, path
