"""The proof on a GPU: what is gathered, that stages go on where they ended, and a dry run."""

import asyncio
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from benchmarks.gpu import gather, requests
from benchmarks.gpu.alike import alike
from benchmarks.gpu.kit import ROOT, VOCABULARY, Kit, Unfinished, Unfit
from benchmarks.gpu.offload import read
from benchmarks.gpu.report import report
from benchmarks.gpu.stages import STAGES, build, pack, suite
from tests.cores import share
from tests.models.llama import write_llama


def kit_in(folder: Path) -> Kit:
    kit = Kit(folder / "kit", folder / "work", deadline=time.monotonic() + 60)
    kit.folder.mkdir(exist_ok=True)
    return kit


def run(folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    where = ("--kit", str(folder / "kit"), "--work", str(folder / "work"))
    argv = [sys.executable, "-m", "benchmarks.gpu", "run", *args, *where]
    argv = ["taskset", "--cpu-list", share(), *argv]  # two pools of threads on a core stand still
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_sources_are_what_a_build_reads(tmp_path: Path) -> None:
    vendor = "llama_cpp_python-1/vendor/llama.cpp"
    names = {
        f"{vendor}/CMakeLists.txt": "llama.cpp/CMakeLists.txt",
        f"{vendor}/ggml/src/ggml.c": "llama.cpp/ggml/src/ggml.c",
        # In an archive a name of more than 100 characters is kept in another place.
        f"{vendor}/ggml/src/ggml-cuda/template-instances/{'x' * 60}.cu": (
            f"llama.cpp/ggml/src/ggml-cuda/template-instances/{'x' * 60}.cu"
        ),
        f"{vendor}/tools/server/server.cpp": "llama.cpp/tools/server/server.cpp",
        f"{vendor}/tools/CMakeLists.txt": None,
        f"{vendor}/tools/ui/ui.h.in": "llama.cpp/tools/ui/ui.h.in",  # even a build without it
        f"{vendor}/tools/ui/ui.cpp.in": "llama.cpp/tools/ui/ui.cpp.in",
        f"{vendor}/tools/ui/package.json": None,
        f"{vendor}/tools/quantize/quantize.cpp": None,
        f"{vendor}/ggml/src/ggml-vulkan/ggml-vulkan.cpp": None,
        f"{vendor}/models/vocab.gguf": None,
        f"{vendor}/docs/build.md": None,
        "llama_cpp_python-1/llama_cpp/llama_cpp.py": "llama_cpp/llama_cpp.py",
        "llama_cpp_python-1/tests/test_llama.py": None,
    }
    sdist = tmp_path / "sdist.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))
    gather.write_sources(sdist, tmp_path / "sources.tar.xz")
    with tarfile.open(tmp_path / "sources.tar.xz") as archive:
        found = archive.getnames()
        tools = archive.extractfile("llama.cpp/tools/CMakeLists.txt")
        assert tools is not None and b"add_subdirectory(server)" in tools.read()
    assert set(found) == {*filter(None, names.values()), "llama.cpp/tools/CMakeLists.txt"}


def test_a_kit_that_is_too_large_to_travel_is_named_and_the_model_is_not_counted() -> None:
    found = {"wheels": 50_000_000, "sources": 9_000_000, "model/0.part": 50_000_000}
    assert gather.too_large(found) is None
    fault = gather.too_large({**found, "vocabulary": 7_000_000})
    assert fault is not None and "66.0 MB, the limit is 60 MB" in fault


def test_the_model_travels_in_parts_and_a_missing_one_is_named(tmp_path: Path) -> None:
    kit = kit_in(tmp_path)
    with pytest.raises(Unfit, match="the model is not in the kit"):
        gather.joined(kit)
    folder = kit.folder / "model"
    folder.mkdir()
    data = bytes(range(256)) * 10
    (folder / "0.part").write_bytes(data[:2000])
    facts = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "model.json").write_text(json.dumps(facts))
    with pytest.raises(Unfit, match="2000 of 2560 bytes"):
        gather.joined(kit)
    (folder / "1.part").write_bytes(data[2000:])
    assert gather.joined(kit) == data


@pytest.mark.slow
def test_what_was_found_is_kept_and_time_is_kept(tmp_path: Path) -> None:
    kit = kit_in(tmp_path)
    assert kit.once("a", lambda: {"x": 1}) == {"x": 1}
    assert kit.once("a", lambda: {"x": 2}) == {"x": 1}
    kit.deadline = time.monotonic() + 1.5
    with pytest.raises(Unfinished):
        kit.run(["sleep", "30"], "sleep")
    with pytest.raises(Unfinished):
        kit.run(["true"], "none left")
    kit.deadline = time.monotonic() + 60
    with pytest.raises(Unfit, match=r"sh failed \(3\)(.|\n)*said so"):
        kit.run(["sh", "-c", "echo said so; exit 3"], "sh")


def test_llama_cpps_log_says_where_each_layer_is() -> None:
    found = read(
        [
            "load_tensors: layer   0 assigned to device CPU, is_swa = 0\n",
            "load_tensors: layer   1 assigned to device CUDA0, is_swa = 0\n",
            "load_tensors: offloaded 1/2 layers to GPU\n",
            "load_tensors:        CUDA0 model buffer size =    12.50 MiB\n",
        ]
    )
    assert found["layers"] == {0: "CPU", 1: "CUDA0"}
    assert found["offloaded"] == [1, 2]
    assert found["buffers"] == {"CUDA0 model": 12.5}


def test_answers_are_compared_to_the_token() -> None:
    assert alike([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 9, 6]]) == {
        "texts": 2,
        "equal": 1,
        "tokens": 3,
        "first_parting": 1,
    }


@pytest.mark.slow
def test_a_stage_without_its_kit_fails_and_says_so(tmp_path: Path) -> None:
    found = run(tmp_path, "install")
    assert found.returncode == 1
    assert "sources.tar.xz is missing: gather first" in found.stdout
    unknown = run(tmp_path, "instal")
    assert (unknown.returncode, "no stage is called instal" in unknown.stderr) == (1, True)


def test_a_python_without_packages_can_begin(tmp_path: Path) -> None:
    """The machine with the GPU has none of them before the stage `install` has run."""
    code = f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r});"
    code += "runpy.run_module('benchmarks.gpu', run_name='__main__', alter_sys=True)"
    where = ("--kit", str(tmp_path / "kit"), "--work", str(tmp_path / "work"))
    argv = [sys.executable, "-I", "-S", "-c", code, "run", "install", *where]
    found = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "sources.tar.xz is missing: gather first" in found.stdout, found.stderr


@pytest.mark.slow
def test_a_build_of_another_machine_is_unpacked_and_not_built_again(tmp_path: Path) -> None:
    kit = kit_in(tmp_path)
    with pytest.raises(Unfit, match="no build to pack: run install and build first"):
        pack(kit)
    folder = kit.build / "bin"
    folder.mkdir(parents=True)
    for name in ("llama-server", "libllama.so.0", "libcublas.so.13", "libx.a"):
        (folder / name).write_text(name)
    (folder / "libllama.so").symlink_to("libllama.so.0")
    pack(kit)
    there = Kit(kit.folder, tmp_path / "there")
    assert build(there)["packed"] == "built.tar.xz"
    found = {path.name: path.read_text() for path in (there.build / "bin").glob("lib[lx]*")}
    assert found == {"libllama.so": "libllama.so.0", "libllama.so.0": "libllama.so.0"}
    assert there.llama_server is not None


def test_a_failed_test_fails_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = kit_in(tmp_path)
    monkeypatch.setattr("benchmarks.gpu.stages._put_model", lambda _kit: None)
    (kit.site / "llama_cpp").mkdir(parents=True)
    ran = []

    def run(_self: Kit, argv: list[str], name: str) -> str:
        ran.append(name)
        if name == "suite":
            assert "--gpu" in argv
            assert "tests/parity/test_parity.py" in argv
            raise Unfit("suite failed (1), see log:\nFAILED a.py::b - no\n1 failed, 2 passed")
        return "recorded"

    monkeypatch.setattr(Kit, "run", run)
    with pytest.raises(Unfit, match=r"^FAILED a.py::b - no$"):
        suite(kit)
    assert ran == ["record", "suite"]


async def test_a_kill_that_comes_after_all_answers_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    answers = [loop.create_future() for _ in range(2)]
    busy = iter([1, 1])

    def n_busy(_url: str) -> int:
        loop.call_soon_threadsafe(answers.pop().set_result, {})
        return next(busy)

    monkeypatch.setattr(requests, "_n_busy", n_busy)
    with pytest.raises(RuntimeError, match="more tokens"):
        await requests._until_two_are_busy("", list(answers))


def point(side: str, tokens_per_s: float) -> dict[str, object]:
    times = {"ttft_p50_ms": 7.1, "ttft_p99_ms": 30.0, "itl_p99_ms": 12.3}
    return {"setting": {"side": side}, "tokens_per_s": tokens_per_s, **times}


def test_the_report_names_every_stage(tmp_path: Path) -> None:
    kit = kit_in(tmp_path)
    kit.once("stage-parity", lambda: {"texts": 6, "equal": 6})
    ours, theirs = point("llamapool", 19.5), point("llama-server", 18.2)
    kit.once("stage-slots", lambda: {"2": {"points": [ours, theirs]}})
    text = report(kit)
    assert all(f"| {name} |" in text for name in STAGES)
    assert "| parity | texts 6, equal 6 |" in text
    assert "| build | not done |" in text
    assert "| 2 | llamapool | 20 | 7, 30 | 12 |" in text
    assert "| 2 | llama-server | 18 | 7, 30 | 12 |" in text


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.cpu
def test_a_dry_run_does_the_stages_on_a_cpu(tmp_path: Path) -> None:
    write_llama(kit_in(tmp_path).folder / VOCABULARY)
    found = run(tmp_path, "install", "offload", "kill", "slots", "--dry-run")
    assert found.returncode == 0, found.stdout + found.stderr
    kit = Kit(tmp_path / "kit", tmp_path / "work")
    killed = kit.once("stage-kill", dict)
    assert killed["whole"] == killed["texts"]  # rounding may part two texts where one went on
    layers = kit.once("stage-offload", dict)
    assert {one["on_gpu"] for one in layers.values()} == {0}
    found_at = {path: path.stat().st_mtime_ns for path in (kit.work / "found").iterdir()}
    again = run(tmp_path, "install", "offload", "kill", "slots", "--dry-run")
    assert again.stdout.count(": done (") == 4
    assert {path: path.stat().st_mtime_ns for path in (kit.work / "found").iterdir()} == found_at
