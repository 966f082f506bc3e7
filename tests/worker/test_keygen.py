"""`llamapool keygen`: files of the right modes, and words that say what to copy where."""

import os
import resource
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner

from protocol.curve import read_public, read_secret
from worker.cli import main


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["keygen", *args])
    return result.exit_code, result.output


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_pair_belongs_together_and_the_secret_is_its_owners(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        code, text = run(str(tmp_path / "keys"), "--name", "gpu-1", "--worker", "gpu-1/*")
    finally:
        os.umask(before)
    assert code == 0, text
    secret, public = tmp_path / "keys/gpu-1.key", tmp_path / "keys/gpu-1.pub"
    assert (mode(secret), mode(public), mode(secret.parent)) == (0o600, 0o644, 0o700)
    found = read_public(public)
    assert zmq.curve_public(read_secret(secret).encode()).decode() == found.key
    assert found.workers == ("gpu-1/*",)
    assert read_secret(secret) not in text


def test_it_says_what_to_copy_where(tmp_path: Path) -> None:
    _, text = run(str(tmp_path), "--name", "gw", "--role", "gateway")
    assert f"--gateway-curve-key {tmp_path}/gw.key" in text
    assert f"copy {tmp_path}/gw.pub to its host and give --gateway-keys gw.pub" in text
    assert "--worker-curve-key" not in text
    _, text = run(str(tmp_path), "--name", "w", "--role", "worker")
    assert f"--worker-curve-key {tmp_path}/w.key" in text
    assert f"copy {tmp_path}/w.pub into the folder of its --worker-keys" in text
    assert "This gateway" not in text
    _, text = run(str(tmp_path), "--name", "both")
    assert "This gateway" in text and "This worker" in text


def test_a_full_disk_leaves_nothing_that_is_in_the_way(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        code, text = run(str(tmp_path), "--name", "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, text) == (1, f"Error: cannot write {tmp_path}/a.key: File too large\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["a.key", "a.pub"])
def test_no_file_is_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious")
    code, text = run(str(tmp_path), "--name", "a")
    assert code == 1 and f"{tmp_path}/{there} exists" in text
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    "args",
    [
        ["--name", "../a"],
        ["--name", ""],
        ["--name", ".a"],
        ["--worker", ""],
        ["--worker", 'a"b'],
        ["--worker", "a\nb"],
        ["--role", "gateway", "--worker", "a"],
        ["--role", "boss"],
    ],
)
def test_bad_words_are_usage_errors(tmp_path: Path, args: list[str]) -> None:
    code, _ = run(str(tmp_path), *args)
    assert code == 2
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, text = run(str(tmp_path / "file" / "keys"))
    assert code != 0 and "file" in text
