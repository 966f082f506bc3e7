"""The libraries of the web page: fetches them anew from npm, and checks what lies in the tree.

    python -m tests.browser.vendor            # after a version in manifest.json has been changed
    python -m tests.browser.vendor --check    # compare the tree with npm's packages

`gateway/static/vendor/manifest.json` names each package with its version and licence, and each of
its files with its path in the package, the SHA-256 of our file, and the replacements that make the
package's bare imports relative (a page needs no import map then).
"""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, cast

FOLDER = Path(__file__).parents[2] / "gateway" / "static" / "vendor"
MANIFEST = FOLDER / "manifest.json"

Package = dict[str, Any]


class NpmUnavailable(Exception):
    """npm is not installed, or has no way to its registry."""


def packages() -> list[Package]:
    """Read the manifest."""
    return cast("list[Package]", json.loads(MANIFEST.read_text())["packages"])


def sha256(content: bytes) -> str:
    """Return the digest as the manifest writes it."""
    return hashlib.sha256(content).hexdigest()


def packed(name: str, version: str) -> dict[str, bytes]:
    """Return the files of a package as npm has them; raises `NpmUnavailable`."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--prefer-offline", f"{name}@{version}"]
        try:
            done = subprocess.run(
                command, cwd=folder, check=False, capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NpmUnavailable(f"npm pack: {error}") from error
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            raise NpmUnavailable(f"npm pack {name}@{version}: {done.stderr.strip()[-300:]}")
        with tarfile.open(fileobj=io.BytesIO(archives[0].read_bytes())) as archive:
            files = [member for member in archive if member.isfile()]
            return {
                member.name.partition("/")[2]: cast("Any", archive.extractfile(member)).read()
                for member in files
            }


def ours(upstream: bytes, replaced: dict[str, str]) -> bytes:
    """Make a package's bare imports relative; raises `ValueError` if one is not in the file."""
    for old, new in replaced.items():
        if old.encode() not in upstream:
            raise ValueError(f"{old} is not in the file any more")
        upstream = upstream.replace(old.encode(), new.encode())
    return upstream


def expected(package: Package) -> dict[str, bytes]:
    """Return what our files of a package have to hold, by their paths below the folder."""
    upstream = packed(package["name"], package["version"])
    return {
        file["file"]: ours(upstream[file["path"]], file.get("replaced", {}))
        for file in package["files"]
    }


def write() -> None:
    """Fetch every package of the manifest, write its files, and note their digests."""
    listed = packages()
    for package in listed:
        contents = expected(package)
        for file in package["files"]:
            target = FOLDER / file["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents[file["file"]])
            file["sha256"] = sha256(contents[file["file"]])
    MANIFEST.write_text(json.dumps({"packages": listed}, indent=2) + "\n")


def differences() -> list[str]:
    """Return the files of ours that are not what npm's packages hold."""
    return [
        name
        for package in packages()
        for name, content in expected(package).items()
        if (FOLDER / name).read_bytes() != content
    ]


if __name__ == "__main__":
    if "--check" not in sys.argv:
        write()
    if different := differences():
        raise SystemExit(f"not as npm has them: {', '.join(different)}")
