"""Puts the code, the units and what they read into a root, and takes them out again."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.install.code import ROOT, CannotInstall, copy_code

SYSTEMD = ROOT / "deploy" / "systemd"
_VENDOR = ("/usr", "/usr/local")
"""Prefixes below which systemd looks for units itself."""
_RELOADS_SINCE = 253
_LIST = "installed-files"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything goes."""

    destdir: Path
    prefix: Path

    @property
    def folder(self) -> Path:
        """The code: interpreter, packages, command."""
        return self.prefix / "lib" / "llamapool"

    @property
    def bindir(self) -> Path:
        """Where the command is found."""
        return self.prefix / "bin"

    @property
    def docdir(self) -> Path:
        """The documents, and the files that they name, as they lie in the repository."""
        return self.prefix / "share" / "doc" / "llamapool"

    @property
    def systemd(self) -> Path:
        """Folder of `system/`, `sysusers.d/` and `tmpfiles.d/`, as systemd names them."""
        return self.prefix / "lib" if str(self.prefix) in _VENDOR else Path("/etc")

    @property
    def units(self) -> Path:
        """Folder of the units."""
        return self.systemd / "systemd" / "system"

    @property
    def list(self) -> Path:
        """The list of all installed files."""
        return self.folder / _LIST

    def real(self, path: Path) -> Path:
        """Return where a path lies until the tree is moved to its root."""
        return self.destdir / path.relative_to("/")


def install(layout: Layout, environment: Path, *, systemd: int) -> None:
    """Install everything; `systemd` is the version that the units are for, 0 if it is unknown.

    Files in /etc that are there already stay as they are. Raises `CannotInstall`.
    """
    if layout.real(layout.list).exists():
        uninstall(layout)
    if layout.real(layout.folder).exists():
        raise CannotInstall(f"{layout.folder} is not ours: it has no {_LIST}")
    copy_code(environment, layout.folder, layout.destdir)
    layout.real(layout.bindir).mkdir(parents=True, exist_ok=True)
    command = layout.real(layout.bindir / "llamapool")
    command.unlink(missing_ok=True)
    command.symlink_to(layout.folder / "bin" / "llamapool")
    copy_documents(layout)
    written = _write_units(layout, systemd)
    owned = [layout.folder, layout.bindir / "llamapool", layout.docdir, *written]
    layout.real(layout.list).write_text("".join(f"{path}\n" for path in owned))


def copy_documents(layout: Layout) -> None:
    """Copy the pages and the files that they name, each at its path in the repository.

    So the links between them lead to the same file as in a checkout.
    """
    folder = layout.real(layout.docdir)
    for name in ("docs", "configs", "deploy/grafana", "deploy/prometheus"):
        shutil.copytree(ROOT / name, folder / name, ignore=_for_developers)
    for name in _PAGES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


_PAGES = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "benchmarks/gpu/README.md")
"""Pages outside of `docs/` to which those in it have links."""
_for_developers = shutil.ignore_patterns("*.py", "__pycache__", "*.test.yml")


def _write_units(layout: Layout, systemd: int) -> list[Path]:
    """Write units, users, folders and the first configuration; return what uninstall removes."""
    units = [*sorted(SYSTEMD.glob("*.service")), *sorted(SYSTEMD.glob("*.socket"))]
    tcp = layout.docdir / "systemd-tcp"
    written = [_write(layout, one, layout.units / one.name) for one in units]
    written += [_write(layout, one, tcp / one.name) for one in (SYSTEMD / "tcp").glob("*.conf")]
    old = SYSTEMD / "before-253.conf"
    written.append(_write(layout, old, layout.docdir / old.name))
    if 0 < systemd < _RELOADS_SINCE:
        folder = layout.units / "llamapool.service.d"
        written.append(_write(layout, old, folder / old.name))
        written.append(folder)
    for kind in ("sysusers", "tmpfiles"):
        path = layout.systemd / f"{kind}.d" / "llamapool.conf"
        written.append(_write(layout, SYSTEMD / f"{kind}.conf", path))
    for name, path in ETC.items():
        if not layout.real(path).exists():
            _write(layout, SYSTEMD / name, path)
    return written


ETC = {
    "default": Path("/etc/default/llamapool"),
    "pool.toml": Path("/etc/llamapool/pool.toml"),
}
"""What the administrator changes: never replaced, never removed but by a purge."""


def _write(layout: Layout, source: Path, path: Path) -> Path:
    text = source.read_text()
    text = text.replace("@BINDIR@", str(layout.bindir)).replace("@DOCDIR@", str(layout.docdir))
    target = layout.real(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return path


def uninstall(layout: Layout) -> None:
    """Remove what `install` has written, but for the files in /etc; raises `CannotInstall`."""
    try:
        lines = layout.real(layout.list).read_text().splitlines()
    except OSError as error:
        raise CannotInstall(f"nothing is installed below {layout.prefix}") from error
    for path in map(layout.real, map(Path, lines)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def systemd_version() -> int:
    """Return the version of this host's systemd; 0 if there is none."""
    try:
        text = subprocess.run(
            ["systemctl", "--version"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return 0
    match = re.match(r"systemd (\d+)", text)
    return int(match[1]) if match else 0
