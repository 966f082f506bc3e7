"""`python -m deploy.install tree|remove|deb`: what `make install`, `uninstall` and `deb` run."""

import argparse
import sys
from pathlib import Path

from deploy.install import debian
from deploy.install.code import CannotInstall, run_version
from deploy.install.tree import Layout, install, systemd_version, uninstall


def main() -> None:
    """Run the command; a failure is one line and exit code 1."""
    parser = argparse.ArgumentParser(prog="deploy.install", description=__doc__)
    parser.add_argument("what", choices=("tree", "remove", "deb"))
    parser.add_argument("--environment", type=Path, default=Path(".venv"))
    parser.add_argument("--destdir", default="", help="root to install into, for packages")
    parser.add_argument("--prefix", type=Path, default=Path("/usr/local"))
    parser.add_argument("--systemd", type=int, help="version that the units are for")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the .deb")
    parser.add_argument("--compression", default="xz", choices=("xz", "gzip", "none"))
    given = parser.parse_args()
    try:
        _run(given)
    except (CannotInstall, OSError) as error:
        sys.exit(f"{given.what}: {error}")


def _run(given: argparse.Namespace) -> None:
    if not given.prefix.is_absolute():
        raise CannotInstall(f"PREFIX {given.prefix}: must be an absolute path")
    layout = Layout(Path(given.destdir or "/").absolute(), given.prefix)
    if given.what == "deb":
        given.out.mkdir(parents=True, exist_ok=True)
        print(debian.build(given.environment, given.out, compression=given.compression))
    elif given.what == "remove":
        uninstall(layout)
    else:
        version = systemd_version() if given.systemd is None else given.systemd
        install(layout, given.environment, systemd=version)
        print(f"installed {run_version(layout.folder, layout.destdir)} below {layout.prefix}")
        if not given.destdir:
            print("next: see docs/running/systemd.md, from its second step on")


if __name__ == "__main__":
    main()
