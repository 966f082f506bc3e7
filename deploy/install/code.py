"""Copies an environment that was built and tested into a place of its own, without the network.

What is copied are the distributions that llamapool needs, found by their metadata, each with the
files that its RECORD lists, and our own wheel. Tools for the work on the code stay behind.
"""

import compileall
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
_COMMAND = """#!{folder}/bin/python3 -P
import sys

from worker.entry import main

sys.exit(main())
"""
_MODEL = "llm-"
"""The model's wheel names packages that nobody here uses."""
_LEFT_OUT = ("..", "/", "bin/", "include/", "lib/")
"""Commands, and what llama-cpp-python's build leaves beside its package, which has its own copy."""
_NOT_USED = ("__pycache__", "tests")
"""Folders that nobody needs there: half of all Python is NumPy's own tests."""


class CannotInstall(Exception):
    """What is missing, and what to do."""


def normal(name: str) -> str:
    """Return a distribution's name in the one spelling that compares equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(environment: Path) -> list[Distribution]:
    """List the distributions that llamapool needs, each once; raises `CannotInstall`."""
    found = {normal(one.name): one for one in distributions(path=[str(packages_of(environment))])}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting, chosen = list(_names(project["dependencies"])), {}
    while waiting:
        name = waiting.pop()
        if name in chosen:
            continue
        if name not in found:
            raise CannotInstall(f"{environment} has no {name}: run `make build` first")
        chosen[name] = found[name]
        if not name.startswith(_MODEL):
            waiting += _names(found[name].requires or ())
    return [chosen[name] for name in sorted(chosen)]


def _names(requirements: Iterable[str]) -> Iterator[str]:
    """Yield the distributions that are needed here; those of extras are not."""
    for line in requirements:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield normal(requirement.name)


def packages_of(environment: Path) -> Path:
    """Return the folder of an environment's packages; raises `CannotInstall`."""
    for path in environment.glob("lib/python3.*/site-packages"):
        return path
    raise CannotInstall(f"{environment} is no Python environment: run `make build` first")


def system_python(environment: Path) -> Path:
    """Return the interpreter for the installed code: the system's, of the same version.

    Raises `CannotInstall` if there is only one that other users cannot run.
    """
    version = packages_of(environment).parent.name
    for folder in ("/usr/bin", "/usr/local/bin"):
        if (path := Path(folder) / version).exists():
            return path
    base = Path(os.path.realpath(environment / "bin" / "python"))
    if base.is_relative_to("/root") or base.is_relative_to("/home"):
        raise CannotInstall(
            f"the service cannot run {base}: install {version} for all users, "
            f"or make the environment anew: make clean build PYTHON=/usr/bin/{version}"
        )
    return base


def copy_code(environment: Path, folder: Path, destdir: Path) -> None:
    """Make `folder` under `destdir`: interpreter, packages, command; raises `CannotInstall`."""
    python = system_python(environment)
    target = destdir / folder.relative_to("/")
    packages = target / "lib" / packages_of(environment).parent.name / "site-packages"
    packages.mkdir(parents=True)
    for source, name in _files(environment):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, packages / name)
    _unpack_own(environment, packages)
    (target / "bin").mkdir()
    (target / "bin" / "python3").symlink_to(python)
    config = f"home = {python.parent}\ninclude-system-site-packages = false\n"
    (target / "pyvenv.cfg").write_text(config)
    command = target / "bin" / "llamapool"
    command.write_text(_COMMAND.format(folder=folder))
    command.chmod(0o755)
    # The service may not write there, so without these each start would compile everything anew.
    compileall.compile_dir(
        packages, quiet=2, stripdir=str(destdir), prependdir="/", workers=os.cpu_count() or 1
    )


def _files(environment: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of the distributions, with their paths below the folder of packages."""
    packages = packages_of(environment)
    for one in needed(environment):
        for file in one.files or ():
            name = str(file)
            if not name.startswith(_LEFT_OUT) and not set(_NOT_USED) & set(file.parts):
                yield packages / name, name


def _unpack_own(environment: Path, packages: Path) -> None:
    """Build our wheel and unpack it: our packages, and the metadata that names the sub-commands."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [str(environment / "bin" / "python"), "-m", "hatchling", "build", "-t", "wheel"]
        built = subprocess.run(
            [*argv, "-d", folder], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if built.returncode:
            raise CannotInstall(f"the wheel cannot be built: {built.stderr.strip()}")
        for wheel in Path(folder).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(packages)


def run_version(folder: Path, destdir: Path) -> str:
    """Return what the installed command says of its version; raises `CannotInstall`."""
    target = destdir / folder.relative_to("/")
    argv = [str(target / "bin" / "python3"), "-P", str(target / "bin" / "llamapool"), "--version"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")
    if result.returncode:
        raise CannotInstall(f"the installed command does not run: {result.stderr.strip()}")
    return result.stdout.strip() or result.stderr.strip()
