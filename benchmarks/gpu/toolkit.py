"""Finds what a CUDA toolkit lacks: cuBLAS, and the driver's library.

A compiler that came in Python packages has cuBLAS in another package (`nvidia/cu13`), whose files
lack the names that CMake looks for; and where no GPU is, there is no driver to link with.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.gpu.kit import Unfit

_LIBRARIES = ("lib64", "lib", "targets/x86_64-linux/lib")
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
_DRIVERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", *_SYSTEM)
"""Where containers mount the driver's libraries, and where packages install them."""
_DRIVER_CALLS = (
    *("cuDeviceGet", "cuDeviceGetAttribute", "cuGetErrorString", "cuMemAddressFree"),
    *("cuMemAddressReserve", "cuMemCreate", "cuMemGetAllocationGranularity", "cuMemMap"),
    *("cuMemRelease", "cuMemSetAccess", "cuMemUnmap"),
)
"""What llama.cpp calls of the driver."""


def cmake_options(work: Path) -> list[str]:
    """Return CMake's options beside the architecture; links go to `work/cublas`.

    Raises `Unfit` without nvcc or cuBLAS.
    """
    try:
        said = subprocess.run(
            ["nvcc", "--dryrun", "-x", "cu", "/dev/null"],
            capture_output=True,
            text=True,
            check=False,
        ).stderr
    except FileNotFoundError:
        raise Unfit("nvcc is not on the PATH: install a CUDA toolkit") from None
    found = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    top = Path(found[1].strip()) if found else Path("/usr/local/cuda")
    return [*_driver(top, _DRIVERS, work / "driver"), *_cublas(top, sys.path, work / "cublas")]


def link_cublas(folder: Path) -> None:
    """Link cuBLAS of a Python package into a folder, if there is such a package."""
    for libraries in _packages(sys.path):
        for name in ("cublas", "cublasLt"):
            library = min(libraries.glob(f"lib{name}.so*"))
            _link(folder / library.name, library)
        return


def cuda_runtime() -> list[Path]:
    """Return the libraries of CUDA's runtime beside nvcc, with the names by which they load."""
    nvcc = shutil.which("nvcc")
    top = Path(nvcc).resolve().parents[1] if nvcc else Path()
    places = [*(top / folder for folder in _LIBRARIES), *Path("/usr/local").glob("cuda*/lib*")]
    return next((found for one in places if (found := sorted(one.glob("libcudart.so.??")))), [])


def _driver(top: Path, folders: Iterable[str], out: Path) -> list[str]:
    """Link with libcuda where CMake does not find it; without one, with a library of its names."""
    if any((top / folder / "stubs/libcuda.so").exists() for folder in _LIBRARIES):
        return []
    for folder in map(Path, folders):
        for name in ("libcuda.so", "libcuda.so.1"):
            if (folder / name).exists():
                return [f"-DCUDA_cuda_driver_LIBRARY={folder / name}"]
    return [f"-DCUDA_cuda_driver_LIBRARY={_stub(out)}"]


def _stub(out: Path) -> Path:
    """Make a library to link with in place of the driver's, which is loaded where a GPU is."""
    out.mkdir(parents=True, exist_ok=True)
    source = "".join(f"int {name}(void) {{ return 999; }}\n" for name in _DRIVER_CALLS)
    library = out / "libcuda.so.1"
    argv = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
    subprocess.run([*argv, "-x", "c", "-"], input=source, text=True, check=True)
    return library


def _cublas(top: Path, packages: Iterable[str], out: Path) -> list[str]:
    """Link headers and libraries of a Python package into a folder of their own.

    The package's own folders hold a whole other toolkit, which would hide the compiler's.
    """
    folders = [*(top / folder for folder in _LIBRARIES), *map(Path, _SYSTEM)]
    if any((folder / "libcublas.so").exists() for folder in folders):
        return []
    for libraries in _packages(packages):
        headers = libraries.parent / "include"
        if (headers / "cublas_v2.h").exists():
            return _linked(libraries, headers, out)
    raise Unfit("there is no cuBLAS: neither in CUDA's toolkit nor in the package nvidia-cublas")


def _packages(packages: Iterable[str]) -> Iterator[Path]:
    """Find the folders of Python packages that hold cuBLAS, the newest CUDA first."""
    for place in map(Path, packages):
        for libraries in sorted(place.glob("nvidia/c*/lib"), reverse=True):
            if any(libraries.glob("libcublas.so*")):
                yield libraries


def _linked(libraries: Path, headers: Path, out: Path) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    options = [f"-DCMAKE_CUDA_FLAGS=-I{out}"]
    for header in headers.glob("cublas*.h"):
        _link(out / header.name, header)
    for name in ("cublas", "cublasLt"):
        library = min(libraries.glob(f"lib{name}.so*"))
        _link(out / library.name, library)
        options.append(f"-DCUDA_{name}_LIBRARY={out / library.name}")
    return options


def _link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
