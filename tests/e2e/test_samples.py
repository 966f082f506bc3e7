"""What the documents show, with the programs that they name: a shell, a browser, Python."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.process import python
from tests.e2e.served import Served

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

PAGE = """<html><body><pre><script type="module">
import { llama } from '/completion.js'
let text = ''
for await (const chunk of llama('Once upon a time', { n_predict: 8 })) {
    document.write(chunk.data.content)
    text += chunk.data.content
}
console.log('PAGE SAID ' + JSON.stringify([text, document.body.textContent]))
</script></pre></body></html>
"""

SHELL = r"""
set -euo pipefail
ask() { curl --silent --fail --request POST --url "$URL/$1" --data "@-"; }
INSTRUCTION="A chat between a curious human and an assistant."
N_KEEP=$(echo -n "$INSTRUCTION" | jq -Rs '{content:.}' | ask tokenize | jq '.tokens[]' | wc -l)
PROMPT="$INSTRUCTION"
for QUESTION in "Hello." "What is the colour of the sky?"; do
    PROMPT="$PROMPT"$'\n### Human: '"$QUESTION"$'\n### Assistant:'
    ANSWER=$(echo -n "$PROMPT" | jq -Rs --argjson n_keep "$N_KEEP" \
        '{prompt: ., temperature: 0.2, n_keep: $n_keep, n_predict: 16, stop: ["\n### Human:"]}' \
        | ask completion | jq -r '.content | sub("^\\s*"; "")')
    echo "$ANSWER"
    PROMPT="$PROMPT $ANSWER"
done
"""

REQUESTS = """
import json, sys, requests
url = sys.argv[1]
body = {"prompt": "Once upon a time", "n_predict": 4}
print(requests.post(url + "/completion", json=body).json()["content"])
with requests.post(url + "/completion", json={**body, "stream": True}, stream=True) as response:
    for line in response.iter_lines():
        if line:
            print(json.loads(line.decode("utf-8")[6:])["content"], end="")
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One worker, and a folder with the sample page."""
    folder: Path = tmp_path_factory.mktemp("www")
    (folder / "index.html").write_text(PAGE)
    served = Served(
        python("-m", "worker.cli", "serve", "-c", "2048", "--port", "0", "--path", str(folder))
    )
    yield served.wait_until_ready()
    served.signal(signal.SIGTERM)
    assert served.wait(30) == 0
    served.close()


def program(*names: str) -> str:
    """Return the first of these programs that is installed."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found


def run(command: list[str], **env: str) -> str:
    """Return what a program prints; it has to succeed."""
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=env or None
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_shell_holds_a_dialog(pool: Served) -> None:
    shell, _, path = program("bash"), program("curl"), program("jq")
    answers = run([shell, "-c", SHELL], URL=pool.url, PATH=f"{Path(path).parent}:/usr/bin:/bin")
    assert len(answers.splitlines()) >= 2


def test_a_page_writes_what_it_streams(pool: Served) -> None:
    browser = program("chromium", "chromium-browser", "google-chrome")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    process = subprocess.Popen([*command, pool.url], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "PAGE SAID " in line or time.monotonic() > deadline:
                break
    finally:
        process.terminate()
        process.communicate(timeout=30)
    written, _ = json.JSONDecoder().raw_decode(line.partition("PAGE SAID ")[2])
    streamed, shown = written
    assert streamed.strip() and streamed in shown


def test_python_posts_and_streams(pool: Served) -> None:
    pytest.importorskip("requests", reason="requests is not installed")
    whole = run([sys.executable, "-c", REQUESTS, pool.url])
    assert whole.strip()
