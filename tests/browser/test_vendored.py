"""The libraries of the web page: whole, listed, licensed, as npm has them, and not too large."""

import gzip
import re

import pytest

from gateway.http.pages.pages import open_pages
from protocol.config.config import GatewayConfig
from tests.browser.vendor import FOLDER, NpmUnavailable, differences, packages, sha256

PACKED_LIMIT_KB = 350


def test_every_file_is_listed_with_its_digest() -> None:
    listed = {file["file"]: file["sha256"] for package in packages() for file in package["files"]}
    found = {
        path.relative_to(FOLDER).as_posix(): sha256(path.read_bytes())
        for path in FOLDER.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert found == listed


def test_every_package_brings_its_licence() -> None:
    for package in packages():
        assert package["licence"], package["name"]
        names = [file["file"] for file in package["files"]]
        assert any(name.startswith("licences/") for name in names), package["name"]


def test_modules_import_only_what_lies_beside_them() -> None:
    bare = re.compile(rb"""(?:\}\s*from|^import)\s*["'](?!\.{1,2}/)[^"']+["']""", re.MULTILINE)
    for path in FOLDER.rglob("*.*js"):
        assert not bare.findall(path.read_bytes()), path.name


def test_the_whole_page_is_small() -> None:
    bodies = {file.name: file.body for file in open_pages(GatewayConfig()).own.values()}
    sizes = {name: len(gzip.compress(body, 9)) / 1000 for name, body in bodies.items()}
    assert sum(sizes.values()) < PACKED_LIMIT_KB, sizes


@pytest.mark.slow
def test_the_files_are_those_of_npms_packages() -> None:
    try:
        assert differences() == []
    except NpmUnavailable as error:
        pytest.skip(f"npm's registry cannot be reached: {error}")
