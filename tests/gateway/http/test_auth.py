"""Keys and key files, without HTTP."""

from pathlib import Path

import pytest

from gateway.http.origin.auth import presented_key
from gateway.keys.ring import KeyRing, open_ring
from protocol.errors import ConfigError


def test_without_keys_the_ring_is_open() -> None:
    assert KeyRing().is_open
    assert not open_ring(["a"], []).is_open


def test_an_empty_key_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none yet\n")
    ring = open_ring([], [str(tmp_path / "keys")])
    assert not ring.is_open
    assert ring.find("") is None
    assert ring.find("# none yet") is None


def test_a_key_names_its_tenant_without_telling_the_key() -> None:
    ring = open_ring(["one,two", "three"], [])
    holders = {ring.find(key) for key in ("one", "two", "three")}
    tenants = {holder.name for holder in holders if holder is not None}
    assert len(tenants) == 3
    assert not any(key in str(tenants) for key in ("one", "two", "three"))
    assert ring.find("one,two") is None


async def test_a_file_that_vanishes_keeps_its_last_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("k\n")
    ring = open_ring([], [str(path)])
    path.unlink()
    await ring.refresh()
    assert ring.find("k") is not None
    assert "key file refused" in caplog.text


def test_a_missing_file_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read api_key_file"):
        open_ring([], [str(tmp_path / "nope")])
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is no UTF-8 text"):
        open_ring([], [str(tmp_path / "binary")])


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer k")], "k"),
        ([(b"authorization", b"bearer  k ")], "k"),
        ([(b"authorization", b"k")], "k"),
        ([(b"x-api-key", b" k")], "k"),
        ([(b"authorization", b"Bearer a"), (b"x-api-key", b"b")], "a"),
        ([(b"authorization", b"Bearer "), (b"x-api-key", b"b")], "Bearer"),
        ([(b"authorization", b""), (b"x-api-key", b"b")], "b"),
        ([(b"x-other", b"k")], ""),
        ([(b"x-api-key", b"\xff")], "\udcff"),
    ],
)
def test_the_key_is_read_from_either_header(headers: list[tuple[bytes, bytes]], key: str) -> None:
    assert presented_key(headers) == key


def test_keys_of_any_bytes_can_be_asked_about() -> None:
    assert open_ring(["a"], []).find("\udcff") is None


async def test_the_only_key_is_an_admins_and_of_several_those_that_are_marked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys"
    path.write_text("alone\n")
    ring = open_ring([], [str(path)])
    assert admins(ring, "alone") == ["alone"]
    path.write_text("alone\nboss admin\nwith space\nadmin\n")
    await ring.refresh()
    assert admins(ring, "alone", "boss", "with space", "admin") == ["boss"]
    assert ring.find("boss admin") is None
    assert open_ring(["a"], [], ["b,c"]).n_keys == 3
    assert admins(open_ring(["a"], [], ["b,c"]), "a", "b", "c") == ["b", "c"]
    assert not open_ring(["a", "b"], []).has_admin
    assert open_ring([], []).has_admin
    assert admins(open_ring(["a", "a"], []), "a") == ["a"]


def admins(ring: KeyRing, *keys: str) -> list[str]:
    found = {key: ring.find(key) for key in keys}
    assert None not in found.values()
    return [key for key, one in found.items() if one is not None and "admin" in one.scopes]
