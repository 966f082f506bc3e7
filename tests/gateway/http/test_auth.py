"""Keys and key files, without HTTP."""

from pathlib import Path

import pytest

from gateway.http.origin.auth import KeyRing, key_ring, presented_key
from protocol.errors import ConfigError


def test_without_keys_the_ring_is_open() -> None:
    assert KeyRing().is_open
    assert not key_ring(["a"], []).is_open


def test_an_empty_key_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none yet\n")
    ring = key_ring([], [str(tmp_path / "keys")])
    assert not ring.is_open
    assert ring.holder("") is None
    assert ring.holder("# none yet") is None


def test_a_key_names_its_tenant_without_telling_the_key() -> None:
    ring = key_ring(["one,two", "three"], [])
    holders = {ring.holder(key) for key in ("one", "two", "three")}
    tenants = {holder.tenant for holder in holders if holder is not None}
    assert len(tenants) == 3
    assert not any(key in str(tenants) for key in ("one", "two", "three"))
    assert ring.holder("one,two") is None


def test_a_file_that_vanishes_keeps_its_last_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("k\n")
    ring = key_ring([], [str(path)])
    path.unlink()
    assert ring.holder("k") is not None
    assert "key file unreadable" in caplog.text


def test_a_missing_file_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read key file"):
        key_ring([], [str(tmp_path / "nope")])
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not text"):
        key_ring([], [str(tmp_path / "binary")])


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
    assert key_ring(["a"], []).holder("\udcff") is None


def test_the_only_key_is_an_admins_and_of_several_those_that_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alone\n")
    ring = key_ring([], [str(path)])
    assert admins(ring, "alone") == ["alone"]
    path.write_text("alone\nboss admin\nwith space\nadmin\n")
    assert admins(ring, "alone", "boss", "with space", "admin") == ["boss"]
    assert ring.holder("boss admin") is None
    assert key_ring(["a"], [], ["b,c"]).n_keys == 3
    assert admins(key_ring(["a"], [], ["b,c"]), "a", "b", "c") == ["b", "c"]
    assert not key_ring(["a", "b"], []).has_admin
    assert key_ring([], []).has_admin
    assert admins(key_ring(["a", "a"], []), "a") == ["a"]


def admins(ring: KeyRing, *keys: str) -> list[str]:
    holders = {key: ring.holder(key) for key in keys}
    assert None not in holders.values()
    return [key for key, holder in holders.items() if holder is not None and holder.is_admin]
