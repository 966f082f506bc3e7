"""`make install`: what it puts into a root runs, and goes again."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.install import tree
from tests.deploy.conftest import install, skip_without_system_python

pytestmark = pytest.mark.slow


def files(root: Path) -> set[str]:
    return {f"/{path.relative_to(root)}" for path in root.rglob("*") if not path.is_dir()}


def test_a_tree_is_installed_runs_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_system_python()
    where = ("--destdir", str(tmp_path), "--prefix", "/usr/local", "--systemd", "254")
    first = install("tree", *where)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("installed llamapool ")
    found = files(tmp_path)
    assert {
        "/usr/local/bin/llamapool",
        "/usr/local/lib/systemd/system/llamapool.service",
        "/usr/local/lib/systemd/system/llamapool-worker@.service",
        "/usr/local/lib/systemd/system/llamapool.socket",
        "/usr/local/lib/sysusers.d/llamapool.conf",
        "/usr/local/lib/tmpfiles.d/llamapool.conf",
        "/usr/local/share/doc/llamapool/docs/running/systemd.md",
        "/etc/default/llamapool",
        "/etc/llamapool/pool.toml",
    } <= found
    assert not [name for name in found if "site-packages/pytest" in name or "/ruff" in name]
    assert not [name for name in found if "/tests/" in name]
    unit = (tmp_path / "usr/local/lib/systemd/system/llamapool.service").read_text()
    assert "ExecStart=/usr/local/bin/llamapool serve" in unit
    assert not re.search("@[A-Z]+@", unit)
    assert "/usr/local/lib/systemd/system/llamapool.service.d/before-253.conf" not in found

    # Again, as an upgrade: what the administrator has written stays. To compile all takes seconds.
    monkeypatch.setattr("compileall.compile_dir", lambda *_, **__: True)
    (tmp_path / "etc/default/llamapool").write_text("mine\n")
    tree.install(tree.Layout(tmp_path, Path("/usr/local")), Path(sys.prefix), systemd=254)
    assert files(tmp_path) == {name for name in found if not name.endswith(".pyc")}
    assert (tmp_path / "etc/default/llamapool").read_text() == "mine\n"

    assert install("remove", *where).returncode == 0
    assert files(tmp_path) == {"/etc/default/llamapool", "/etc/llamapool/pool.toml"}
    again = install("remove", *where)
    assert again.returncode == 1
    assert "nothing is installed below /usr/local" in again.stderr


def test_every_link_of_an_installed_page_leads_to_an_installed_file(tmp_path: Path) -> None:
    layout = tree.Layout(tmp_path, Path("/opt"))
    tree.copy_documents(layout)
    folder = layout.real(layout.docdir)
    pages = sorted(folder.rglob("*.md"))
    assert len(pages) > 50
    for page in pages:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            found = (page.parent / target).resolve()
            assert found.exists() and found.is_relative_to(folder), f"{page} links to {target}"
    text = (folder / "docs/running/on-call.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(deploy/[^`]+)`", text):
        assert (folder / name).exists(), f"on-call.md names {name}"


def test_what_is_not_ours_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "opt/lib/llamapool").mkdir(parents=True)
    result = install("tree", "--destdir", str(tmp_path), "--prefix", "/opt")
    assert result.returncode == 1
    assert "/opt/lib/llamapool is not ours" in result.stderr
    assert "must be an absolute path" in install("tree", "--prefix", "opt").stderr


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd is not installed")
def test_users_and_folders_are_made(tmp_path: Path) -> None:
    systemd = Path(__file__).parents[2] / "deploy" / "systemd"
    for kind in ("sysusers", "tmpfiles"):
        folder = tmp_path / "usr/lib" / f"{kind}.d"
        folder.mkdir(parents=True)
        shutil.copy(systemd / f"{kind}.conf", folder / "llamapool.conf")
    (tmp_path / "etc/llamapool").mkdir(parents=True)
    keys = tmp_path / "etc/llamapool/keys"
    keys.write_text("secret admin\n")
    keys.chmod(0o644)
    for argv in (["systemd-sysusers"], ["systemd-tmpfiles", "--create"]):
        subprocess.run([*argv, f"--root={tmp_path}", "llamapool.conf"], check=True)
    (user,) = (tmp_path / "etc/passwd").read_text().splitlines()
    name, _, uid, gid, _, home, shell = user.split(":")
    assert (name, home) == ("llamapool", "/var/lib/llamapool")
    assert shell.endswith("nologin")
    groups = (tmp_path / "etc/group").read_text()
    assert "render:" in groups and "video:" in groups
    modes = {
        "etc/llamapool": (0o750, 0, int(gid)),
        "etc/llamapool/keys": (0o600, 0, 0),
        "etc/llamapool/keys.d": (0o700, 0, 0),
        "var/lib/llamapool": (0o700, int(uid), int(gid)),
    }
    for path, expected in modes.items():
        found = (tmp_path / path).stat()
        assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == expected, path
