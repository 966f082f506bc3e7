"""Judges whether llama.cpp can be loaded and runs on this CPU."""

import re
import signal
from collections.abc import Mapping

from worker.doctor.finding import Finding, fail, ok, warn
from worker.host.child import ChildOutcome
from worker.supervisor.children.exit_reasons import explain

LIBRARY, CPU = "llama.cpp", "cpu"

REBUILD = (
    "rebuild it here: CMAKE_ARGS={args} pip install --force-reinstall --no-cache-dir --no-deps "
    "--no-binary llama-cpp-python llama-cpp-python"
)
PORTABLE = REBUILD.format(args="-DGGML_NATIVE=OFF")

_FLAGS: Mapping[str, tuple[str, ...]] = {
    "sse3": ("pni",),
    "ssse3": ("ssse3",),
    "avx": ("avx",),
    "avx_vnni": ("avx_vnni",),
    "avx2": ("avx2",),
    "f16c": ("f16c",),
    "fma": ("fma",),
    "bmi2": ("bmi2",),
    "avx512": ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
    "avx512_vbmi": ("avx512vbmi",),
    "avx512_vnni": ("avx512_vnni",),
    "avx512_bf16": ("avx512_bf16",),
    "amx_int8": ("amx_int8",),
}
"""llama.cpp's name of an extension, in lower case, to its flags in /proc/cpuinfo."""

_WORTH = ("avx2", "fma", "f16c", "avx512", "avx512_vnni", "avx_vnni", "amx_int8")
"""Extensions that make llama.cpp faster."""


def features(system_info: str) -> frozenset[str]:
    """Read what a build uses of the CPU, the last part of `llama_print_system_info`."""
    _, _, of_cpu = system_info.rpartition("CPU : ")
    found = re.findall(r"(\w+) = (\d+)", of_cpu)
    return frozenset(name.lower() for name, value in found if value != "0")


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """Read the flags of the first CPU in /proc/cpuinfo; empty where it has none."""
    match = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def missing(built: frozenset[str], flags: frozenset[str]) -> list[str]:
    """Return the extensions that the build uses and the CPU lacks."""
    return sorted(
        name for name in built if name in _FLAGS and flags and not flags.issuperset(_FLAGS[name])
    )


def unused(built: frozenset[str], flags: frozenset[str]) -> list[str]:
    """Return the extensions of this CPU that would help and that the build does not use."""
    return [name for name in _WORTH if name not in built and flags.issuperset(_FLAGS[name])]


def check_library(outcome: ChildOutcome, built: frozenset[str], flags: frozenset[str]) -> Finding:
    """Judge whether llama.cpp could be loaded, and if not, why."""
    facts = outcome.facts
    if outcome.code == 0 and "llama" in facts:
        what = f"{facts['llama']} of llama-cpp-python {facts['binding']}"
        return ok(LIBRARY, f"{what} is loaded; {str(facts.get('system', '')).strip(' |')}")
    if outcome.code == -signal.SIGILL:
        return fail(LIBRARY, _illegal(built, flags), PORTABLE)
    if outcome.code is None:
        remedy = "is the file system of the packages, or a GPU driver, stuck? See dmesg"
        return fail(LIBRARY, "loading llama.cpp did not end", remedy)
    if "No module named 'llama_cpp'" in outcome.stderr:
        return fail(LIBRARY, "llama-cpp-python is not installed", "pip install llama-cpp-python")
    if lacking := re.search(r"(lib[\w.+-]+): cannot open shared object", outcome.stderr):
        remedy = f"install the package with {lacking[1]}, or rebuild llama.cpp on this machine"
        return fail(LIBRARY, f"llama.cpp needs {lacking[1]}, which is not here", remedy)
    reason = outcome.last_line or "no output"
    return fail(LIBRARY, f"cannot load llama.cpp: {explain(outcome.code)}; {reason}", PORTABLE)


def _illegal(built: frozenset[str], flags: frozenset[str]) -> str:
    lacking = missing(built, flags)
    what = f"it uses {', '.join(lacking)}, which this CPU does not have" if lacking else ""
    return "llama.cpp died of an illegal instruction" + (f": {what}" if what else "")


def check_cpu(built: frozenset[str], flags: frozenset[str]) -> Finding:
    """Compare what the build was made for with what the CPU can do."""
    if not built or not flags:
        return ok(CPU, "the CPU extensions that the build needs are unknown")
    if lacking := missing(built, flags):
        return fail(
            CPU, f"the build uses {', '.join(lacking)}, which this CPU does not have", PORTABLE
        )
    used = ", ".join(name for name in _FLAGS if name in built) or "no extension"
    more = unused(built, flags)
    if {"avx2", "fma"} & set(more):
        remedy = REBUILD.format(args="-DGGML_NATIVE=ON")
        return warn(CPU, f"the build leaves out {', '.join(more)}, which this CPU has", remedy)
    also = f"; a build with -DGGML_NATIVE=ON would also use {', '.join(more)}" if more else ""
    return ok(CPU, f"the CPU runs what the build uses: {used}{also}")
