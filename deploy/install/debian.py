"""Makes a Debian package of the same tree, with dpkg-deb."""

import hashlib
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

from deploy.install.code import ROOT, CannotInstall, packages_of
from deploy.install.tree import ETC, Layout, install

_SCRIPTS = ROOT / "deploy" / "install" / "scripts"
_CONTROL = """Package: llamapool
Version: {version}
Architecture: {architecture}
Maintainer: The maintainers of llamapool <llamapool@localhost>
Installed-Size: {size_kib}
Depends: python3 (>= {python}), python3 (<< {next_python}), libgomp1, libstdc++6
Recommends: systemd
Section: net
Priority: optional
Description: {description}
 Gateways and llama.cpp workers with their systemd units, and a small model to begin with.
"""


def build(environment: Path, out: Path, *, compression: str) -> Path:
    """Write the package into `out` and return its path; raises `CannotInstall`."""
    if shutil.which("dpkg-deb") is None:
        raise CannotInstall("dpkg-deb is not installed: a .deb can only be made on Debian's kin")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory(dir=out) as folder:
        tree = Path(folder) / "llamapool"
        tree.mkdir(mode=0o755)
        # The version of systemd is known only where the package is unpacked: see postinst.
        install(Layout(tree, Path("/usr")), environment, systemd=0)
        _write_control(tree, environment, project)
        path = out / f"llamapool_{project['version']}_{_architecture()}.deb"
        argv = [
            "dpkg-deb",
            f"-Z{compression}",
            "--root-owner-group",
            "--build",
            str(tree),
            str(path),
        ]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return path


def _write_control(tree: Path, environment: Path, project: dict[str, str]) -> None:
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    major, minor = map(int, packages_of(environment).parent.name.removeprefix("python").split("."))
    control = _CONTROL.format(
        version=project["version"],
        architecture=_architecture(),
        size_kib=sum(path.stat().st_size for path in files) // 1024,
        python=f"{major}.{minor}",
        next_python=f"{major}.{minor + 1}",
        description=project["description"].rstrip("."),
    )
    folder = tree / "DEBIAN"
    folder.mkdir(mode=0o755)
    (folder / "control").write_text(control)
    (folder / "conffiles").write_text("".join(f"{path}\n" for path in ETC.values()))
    sums = (f"{_md5(path)}  {path.relative_to(tree)}\n" for path in files)
    (folder / "md5sums").write_text("".join(sums))
    for source in sorted(_SCRIPTS.iterdir()):
        (folder / source.name).write_text(source.read_text())
        (folder / source.name).chmod(0o755)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _architecture() -> str:
    argv = ["dpkg", "--print-architecture"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
