"""What a build needs of the CPU, and why llama.cpp cannot be loaded."""

import signal
from pathlib import Path

import pytest

from worker.doctor.finding import Level
from worker.doctor.library import check_cpu, check_library, cpu_flags, features, missing, unused
from worker.doctor.readers.elf import built_for
from worker.host.child import ChildOutcome

INFO = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | FMA = 1 | NEON = 0 | OPENMP = 1 | REPACK = 1 | "
HASWELL = frozenset(["pni", "ssse3", "avx", "avx2", "f16c", "fma", "bmi2"])
SKYLAKE_X = HASWELL | frozenset(["avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"])
BUILT = frozenset({"sse3", "ssse3", "avx", "avx2", "f16c", "fma", "bmi2"})


def test_the_builds_extensions_are_read() -> None:
    assert features(INFO) == {"sse3", "avx", "avx2", "fma", "openmp", "repack"}
    assert features("CUDA : ARCHS = 900 | USE_GRAPHS = 1 | " + INFO) == features(INFO)


def test_flags_are_those_of_the_first_cpu() -> None:
    text = "processor\t: 0\nflags\t\t: fpu avx avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    assert cpu_flags(text) == {"fpu", "avx", "avx2"}
    assert cpu_flags("processor : 0\nFeatures : fp asimd\n") == frozenset()


def test_an_extension_is_there_only_with_all_its_flags() -> None:
    built = BUILT | {"avx512", "openmp", "neon"}
    assert missing(built, HASWELL) == ["avx512"]
    assert missing(built, SKYLAKE_X - {"avx512bw"}) == ["avx512"]
    assert missing(built, SKYLAKE_X) == []
    assert missing(built, frozenset()) == []


def test_a_cpu_that_lacks_something_is_a_failure_with_the_way_to_rebuild() -> None:
    found = check_cpu(BUILT | {"avx512"}, HASWELL)
    assert found.level is Level.FAIL
    assert "avx512" in found.text
    assert "-DGGML_NATIVE=OFF" in found.remedy


def test_extensions_left_out_are_told_and_the_basic_ones_are_a_warning() -> None:
    assert unused(BUILT, SKYLAKE_X) == ["avx512"]
    found = check_cpu(BUILT, SKYLAKE_X)
    assert found.level is Level.OK
    assert "-DGGML_NATIVE=ON would also use avx512" in found.text
    found = check_cpu(frozenset({"sse3"}), HASWELL)
    assert found.level is Level.WARN
    assert "avx2" in found.text


def test_what_cannot_be_told_is_no_fault() -> None:
    assert check_cpu(frozenset(), HASWELL).level is Level.OK
    assert check_cpu(BUILT, frozenset()).level is Level.OK


@pytest.mark.parametrize(
    ("outcome", "text", "remedy"),
    [
        (
            ChildOutcome(-signal.SIGILL),
            "illegal instruction: it uses avx512, which this CPU does not have",
            "-DGGML_NATIVE=OFF",
        ),
        (ChildOutcome(None), "did not end", "dmesg"),
        (
            ChildOutcome(1, {}, "ModuleNotFoundError: No module named 'llama_cpp'\n"),
            "not installed",
            "pip install llama-cpp-python",
        ),
        (
            ChildOutcome(1, {}, "OSError: libcudart.so.12: cannot open shared object file: none\n"),
            "needs libcudart.so.12",
            "libcudart.so.12",
        ),
        (ChildOutcome(-signal.SIGSEGV, {}, "x\nFatal\n"), "segmentation fault; Fatal", "rebuild"),
        (ChildOutcome(0, {"text": "?"}, ""), "no output", "rebuild"),
    ],
)
def test_why_it_cannot_be_loaded_is_said_with_the_mend(
    outcome: ChildOutcome, text: str, remedy: str
) -> None:
    found = check_library(outcome, BUILT | {"avx512"}, HASWELL)
    assert found.level is Level.FAIL
    assert text in found.text
    assert remedy in found.remedy


def test_a_loaded_library_says_its_versions() -> None:
    facts = {"llama": "0.5.0", "binding": "0.3.36", "system": INFO}
    found = check_library(ChildOutcome(0, facts), BUILT, HASWELL)
    assert found.level is Level.OK
    assert found.text.startswith("0.5.0 of llama-cpp-python 0.3.36")


def test_other_files_tell_nothing(tmp_path: Path) -> None:
    path = tmp_path / "libggml-cpu.so"
    assert built_for(path) == frozenset()
    for data in (b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 100, b"text" * 50):
        path.write_bytes(data)
        assert built_for(path) == frozenset()


@pytest.mark.model
def test_the_file_tells_what_the_library_says() -> None:
    import llama_cpp
    import llama_cpp.llama_cpp as lib

    path = Path(llama_cpp.__file__).parent / "lib" / "libggml-cpu.so"
    says = features(lib.llama_print_system_info().decode()) - {"openmp", "repack"}
    assert built_for(path) in (says, frozenset())
