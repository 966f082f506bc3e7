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
from collections.abc import Sequence
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


def packed(wanted: Sequence[Package]) -> list[dict[str, bytes]]:
    """Return the files of packages as npm has them; raises `NpmUnavailable`."""
    names = [f"{package['name']}@{package['version']}" for package in wanted]
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--prefer-offline", *names]
        try:
            done = subprocess.run(
                command, cwd=folder, check=False, capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NpmUnavailable(f"npm pack: {error}") from error
        archives = [
            Path(folder) / f"{name.removeprefix('@').replace('/', '-').replace('@', '-')}.tgz"
            for name in names
        ]
        if done.returncode or not all(path.exists() for path in archives):
            raise NpmUnavailable(f"npm pack {names}: {done.stderr.strip()[-300:]}")
        return [_files_in(path.read_bytes()) for path in archives]


def _files_in(packed_files: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(packed_files)) as archive:
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


def expected(wanted: Sequence[Package]) -> dict[str, bytes]:
    """Return what our files of packages have to hold, by their paths below the folder."""
    return {
        file["file"]: ours(upstream[file["path"]], file.get("replaced", {}))
        for package, upstream in zip(wanted, packed(wanted), strict=True)
        for file in package["files"]
    }


def write() -> None:
    """Fetch every package of the manifest, write its files, and note their digests."""
    listed = packages()
    contents = expected(listed)
    for package in listed:
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
        for name, content in expected(packages()).items()
        if (FOLDER / name).read_bytes() != content
    ]


if __name__ == "__main__":
    if "--check" not in sys.argv:
        write()
    if different := differences():
        raise SystemExit(f"not as npm has them: {', '.join(different)}")
