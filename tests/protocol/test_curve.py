"""Key files: what is read back, and what is refused with the file's name."""

from pathlib import Path

import pytest

from protocol.curve import (
    is_exposed,
    public_files,
    public_text,
    read_public,
    read_secret,
    secret_text,
)
from protocol.errors import ConfigError

KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
"""From the specification of CurveZMQ."""


def test_a_pair_is_read_back(tmp_path: Path) -> None:
    public, secret = tmp_path / "a.pub", tmp_path / "a.key"
    public.write_text(public_text(KEY, ("gpu-1/*", "spare")))
    secret.write_text(secret_text(KEY))
    found = read_public(public)
    assert (found.key, found.workers, read_secret(secret)) == (KEY, ("gpu-1/*", "spare"), KEY)
    public.write_text(public_text(KEY))
    assert read_public(public).workers == ()


@pytest.mark.parametrize(
    ("workers", "name", "may_be"),
    [
        ((), "any/thing", True),
        (("gpu-1/*",), "gpu-1/small-1", True),
        (("gpu-1/*",), "gpu-10/small-1", False),
        (("gpu-1/*",), "GPU-1/small-1", False),
        (("a", "b-?"), "b-2", True),
        (("a", "b-?"), "b-22", False),
    ],
)
def test_a_key_stands_for_its_names(
    tmp_path: Path, workers: tuple[str, ...], name: str, may_be: bool
) -> None:
    path = tmp_path / "a.pub"
    path.write_text(public_text(KEY, workers))
    assert read_public(path).accepts(name) is may_be


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "public-key must be a key of 40 characters"),
        ("public-key = 1", "public-key must be a key"),
        (f'public-key = "{KEY[:-1]}"', "public-key must be a key"),
        (f'public-key = "{KEY}0"', "public-key must be a key"),
        (f'public-key = "{KEY[:-1]}~"', "public-key must be a key"),
        ('public-key = "' + "#" * 40 + '"', "public-key must be a key"),  # more than 32 bits
        (f'secret-key = "{KEY}"', "holds a secret key: copy the .pub file"),
        (public_text(KEY) + 'worker = ["a"]', "unknown key 'worker'"),
        (public_text(KEY) + 'workers = "a"', "workers must be a list"),
        (public_text(KEY) + "workers = [1]", "workers must be a list"),
        (public_text(KEY) + 'workers = [""]', "workers must be a list"),
        ("public-key", "is no key file"),
        ("\x00", "is no key file"),
        ("#" * 70_000, "more than 64 KiB"),
    ],
)
def test_what_is_no_public_key_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.pub"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_public(path)
    assert str(path) in str(caught.value)


def test_a_public_key_in_place_of_the_secret_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.pub"
    path.write_text(public_text(KEY))
    with pytest.raises(ConfigError, match=r"holds a public key: name the \.key file"):
        read_secret(path)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot read {tmp_path}/none"):
        read_secret(tmp_path / "none")
    (tmp_path / "bytes.pub").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"bytes\.pub: it is no UTF-8 text"):
        read_public(tmp_path / "bytes.pub")
    with pytest.raises(ConfigError, match="cannot read"):
        read_public(tmp_path)


def test_a_folder_gives_its_public_files(tmp_path: Path) -> None:
    for name in ("b.pub", "a.pub", "a.key", ".hidden"):
        (tmp_path / name).touch()
    assert public_files(tmp_path) == [tmp_path / "a.pub", tmp_path / "b.pub"]
    assert public_files(tmp_path / "b.pub") == [tmp_path / "b.pub"]


def test_a_secret_that_others_may_read_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    path.touch(0o600)
    assert not is_exposed(path)
    path.chmod(0o640)
    assert is_exposed(path)
