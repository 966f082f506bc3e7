"""What a browser gets at `/`: the built-in page, a directory of one's own, or nothing."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.http.pages import open_pages
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError
from tests.gateway.inprocess import running

pytestmark = pytest.mark.slow

MODULES = ("/completion.js", "/index.js", "/json-schema-to-grammar.mjs")
"""What pages of the seeds import."""


async def test_the_page_and_its_files_need_no_key_and_load_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, api_key=("secret",)) as gateway:
        for path in ("/", "/index.html", "/page.js", "/page.css", *MODULES):
            answer = await gateway.client.get(path)
            assert answer.status_code == 200, path
            assert "http://" not in answer.text and "https://" not in answer.text
            assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert (await gateway.client.get("/")).headers["content-type"].startswith("text/html")
        assert (await gateway.client.get("/v1/models")).status_code == 401
        assert (await gateway.client.post("/")).status_code == 401


async def test_without_the_page_its_paths_are_not_found(tmp_path: Path) -> None:
    async with running(tmp_path, ui=False) as gateway:
        for path in ("/", "/completion.js"):
            answer = await gateway.client.get(path)
            assert answer.status_code == 404
            assert answer.json()["error"]["message"] == "File Not Found"


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
        for path in ("/nothing", "/..%2fsecret.txt", "/%00"):
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
    module = Path(__file__).parents[3] / "gateway" / "static" / "completion.js"
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


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_index_js_shows_what_is_described_and_keeps_what_stays(tmp_path: Path) -> None:
    script = Path(__file__).parent / "page_script.mjs"
    shutil.copytree(Path(__file__).parents[3] / "gateway" / "static", tmp_path / "static")
    (tmp_path / "static" / "package.json").write_text('{"type": "module"}')
    module = tmp_path / "static" / "index.js"
    process = await asyncio.create_subprocess_exec(
        *("node", str(script), module.as_uri()), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    told = json.loads(out)
    assert told["signals"] == [[3, 30], 20, "0", 0]
    assert told["first"] == '<ul class="a 3"><li>x:0</li><li>y:0</li><li>z:0</li></ul>'
    assert told["clicked"] == told["first"].replace("y:0", "y:1")
    listed = '<ul class="a 4"><li>z:0</li><li>y:1</li><li>w:0</li><li>v:0</li></ul>'
    assert told["changed"] == f"{listed}<p>many<br></br>of them</p>"
    assert told["kept"] is True
    assert told["emptied"] == '<ul class="a 0"></ul>'
    assert sorted(told["log"]) == sorted(f"{sign}{name}" for sign in "+-" for name in "vwxyz")
    shown = '<input disabled="" title="T"></input><i>2</i><b>5!</b>'
    assert told["fields"] == [shown, "hi", "font-size: 2em"]
    assert told["later"] == '<input title="T"></input><b>5!</b>'
    assert told["plain"] == "plain"
    assert told["unclosed"] == "html: p is not closed"
