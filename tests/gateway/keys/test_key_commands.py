"""`llamapool key`: the key is shown once, the file stays private and keeps its comments."""

import json
import stat
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.keys import edit
from gateway.keys.cli import key
from gateway.keys.parse import KeyFileError, parse_keys
from gateway.keys.ring import open_ring


def run(path: Path, *args: str) -> Result:
    return CliRunner().invoke(key, [*args, "--file", str(path)])


def test_a_new_key_is_printed_once_and_stored_as_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    made = run(
        *(path, "add", "alice", "--scope", "infer", "--scope", "admin", "--model", 'sm"all'),
        *("--priority", "low", "--concurrent", "2", "--requests-per-minute", "3"),
        *("--tokens-per-minute", "4", "--tokens-per-day", "5", "--expires", "2027-01-31"),
    )
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    assert secret.startswith("sk-")
    assert len(secret) > 40
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["keys.toml"]
    found = open_ring([], [str(path)]).find(secret)
    assert found is not None
    assert (found.name, found.models) == ("alice", ('sm"all',))
    assert found.scopes == {"infer", "admin"}
    limits = found.limits
    assert (limits.concurrent, limits.requests_per_minute) == (2, 3)
    assert (limits.tokens_per_minute, limits.tokens_per_day) == (4, 5)
    listed = run(path, "list")
    assert "alice" in listed.stdout
    assert "2027-01-31" in listed.stdout
    (row,) = json.loads(run(path, "list", "--json").stdout)
    assert row["state"] == "valid"
    assert secret not in str(row)


def test_a_revoked_key_goes_with_its_lines_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("# the team\n\n")
    for name in ("a", "b", "c"):
        assert run(path, "add", name).exit_code == 0
    text = path.read_text().replace('[[key]]\nname = "c"', '# for the robot\n[[key]]\nname = "c"')
    path.write_text(text)
    path.chmod(0o640)
    assert run(path, "revoke", "b").exit_code == 0
    left = path.read_text()
    assert left.startswith("# the team\n")
    assert '# for the robot\n[[key]]\nname = "c"' in left
    assert [one.name for one in parse_keys(left)] == ["a", "c"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert run(path, "revoke", "c").exit_code == 0
    assert run(path, "revoke", "a").exit_code == 0
    assert parse_keys(path.read_text()) == ()


def test_what_cannot_be_done_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    run(path, "add", "a")
    before = path.read_text()
    assert "there is a key 'a' already" in run(path, "add", "a").output
    assert "no key 'x'" in run(path, "revoke", "x").output
    assert run(path, "add", "a b").exit_code == 2
    soon = run(path, "add", "c", "--expires", "soon")
    assert soon.exit_code == 2 and "neither a date such as 2027-01-31" in soon.output
    assert path.read_text() == before
    old = tmp_path / "old"
    old.write_text("one\n")
    assert "one key a line" in run(old, "add", "a").output
    assert old.read_text() == "one\n"
    inline = tmp_path / "inline"
    inline.write_text('# [[key]]\n[[key]]\nname = "a"\nkey = """\n[[key]]"""\n')
    assert "line" in run(inline, "revoke", "a").output
    assert run(tmp_path / "none" / "keys", "add", "a").exit_code == 1
    assert run(tmp_path / "nothing", "list").exit_code == 1


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("2027-01-31T18:00:00.5", "2027-01-31T18:00:00.500000Z"),
        ("0999-01-01", "0999-01-01T00:00:00Z"),
        ("2027-01-31T18:00:00+01:00", "2027-01-31T17:00:00Z"),
    ],
)
def test_every_date_can_be_an_expiry(tmp_path: Path, given: str, written: str) -> None:
    path = tmp_path / "keys.toml"
    assert run(path, "add", "a", "--expires", given).exit_code == 0
    assert f"expires = {written}\n" in path.read_text()
    (row,) = json.loads(run(path, "list", "--json").stdout)
    assert row["expires"] == written[:16].replace("T", " ")


@pytest.mark.parametrize("given", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_a_date_outside_of_utc_is_refused(tmp_path: Path, given: str) -> None:
    path = tmp_path / "keys.toml"
    refused = run(path, "add", "a", "--expires", given)
    assert refused.exit_code == 2
    assert "between the years 1 and 9999 in UTC" in refused.output
    path.write_text(f'[[key]]\nname = "a"\nkey = "secret"\nexpires = {given}\n')
    with pytest.raises(KeyFileError, match="between the years 1 and 9999 in UTC"):
        parse_keys(path.read_text())


def test_a_models_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    refused = run(tmp_path / "keys.toml", "add", "a", "--model", "\udcff")
    assert refused.exit_code == 2
    assert "--model" in refused.output


def test_a_folder_that_another_program_has_locked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edit, "LOCK_WAIT_S", 0.0)
    with edit.locked(tmp_path / "keys.toml"):
        refused = run(tmp_path / "keys.toml", "add", "a")
    assert refused.exit_code == 1
    assert "another program holds a lock of its folder" in refused.output
    assert run(tmp_path / "keys.toml", "add", "a").exit_code == 0


def test_two_commands_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    names = [f"k{i}" for i in range(12)]
    threads = [threading.Thread(target=_add, args=(path, name)) for name in names]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(one.name for one in parse_keys(path.read_text())) == sorted(names)


def _add(path: Path, name: str) -> None:
    key.main(["add", name, "--file", str(path)], standalone_mode=False)
