"""What a build with CUDA is told where the toolkit lacks cuBLAS or the driver's library."""

import ctypes
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.kit import Unfit
from benchmarks.gpu.toolkit import cmake_options

NVCC = """#!/bin/sh
echo '#$ _THERE_=x' >&2
echo '#$ TOP={top}' >&2
"""


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolkit of which the compiler says where it is, and nothing else on this machine."""
    found = tmp_path / "cuda"
    (found / "lib64").mkdir(parents=True)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(NVCC.format(top=found))
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nvcc.parent}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr("benchmarks.gpu.toolkit._SYSTEM", ())
    monkeypatch.setattr("benchmarks.gpu.toolkit._DRIVERS", (str(tmp_path / "driver"),))
    return found


def put(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_a_whole_toolkit_needs_no_options(top: Path, tmp_path: Path) -> None:
    put(top / "lib64/libcublas.so", top / "lib64/stubs/libcuda.so")
    assert cmake_options(tmp_path / "work") == []


def test_cublas_is_taken_from_its_package_without_the_rest_of_it(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "driver/libcuda.so.1")
    package = tmp_path / "site/nvidia/cu13"
    put(package / "lib/libcublas.so.13", package / "lib/libcublasLt.so.13")
    put(package / "lib/libcudart.so.13", package / "include/cuda.h")
    put(package / "include/cublas_v2.h", package / "include/cublas_api.h")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path / "site")])
    for _ in range(2):  # again after a break
        out = tmp_path / "work/cublas"
        assert cmake_options(tmp_path / "work") == [
            f"-DCUDA_cuda_driver_LIBRARY={tmp_path}/driver/libcuda.so.1",
            f"-DCMAKE_CUDA_FLAGS=-I{out}",
            f"-DCUDA_cublas_LIBRARY={out}/libcublas.so.13",
            f"-DCUDA_cublasLt_LIBRARY={out}/libcublasLt.so.13",
        ]
        assert sorted(path.name for path in out.iterdir()) == [
            *("cublas_api.h", "cublas_v2.h", "libcublas.so.13", "libcublasLt.so.13")
        ]


def test_without_a_driver_the_build_links_with_a_library_of_its_names(
    top: Path, tmp_path: Path
) -> None:
    put(top / "lib64/libcublas.so")
    library = tmp_path / "work/driver/libcuda.so.1"
    assert cmake_options(tmp_path / "work") == [f"-DCUDA_cuda_driver_LIBRARY={library}"]
    assert ctypes.CDLL(str(library)).cuMemCreate() == 999


def test_what_is_missing_is_named(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unfit, match="neither in CUDA's toolkit nor in the package nvidia-cublas"):
        cmake_options(tmp_path / "work")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unfit, match="nvcc is not on the PATH"):
        cmake_options(tmp_path / "work")
