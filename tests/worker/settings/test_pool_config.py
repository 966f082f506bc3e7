"""The configuration of a command, where options change it by what they ask for."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from protocol.config.config import GatewayConfig, PoolConfig, WorkerConfig
from worker import cli
from worker.settings.pool_config import needing_restart

LOCAL, ANY = 'cors_origins = ["localhost"]', 'cors_origins = ["*"]'


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--tools all", LOCAL),
        ("-ag", LOCAL),
        ("--mcp-servers-json {}", LOCAL),
        ("--tools all --cors-origins *", ANY),
        ("--tools all --cors-origins https://a.example", 'cors_origins = ["https://a.example"]'),
        ("--ui-mcp-proxy --tools-runtime docker:x", ANY),
    ],
)
def test_who_asks_for_tools_lets_only_local_pages_read_answers(words: str, expected: str) -> None:
    args = ["config", "show", *words.split()]
    assert expected in CliRunner().invoke(cli.main, args).stdout.splitlines()


def test_a_file_and_a_variable_that_is_off_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_AGENT", "0")
    args = ["config", "show"]
    assert ANY in CliRunner().invoke(cli.main, args).stdout
    file = tmp_path / "pool.toml"
    file.write_text('[gateway]\ncors_origins = ["https://b.example"]\n')
    args += ["--config", str(file), "--agent"]
    assert "https://b.example" in CliRunner().invoke(cli.main, args).stdout


@pytest.mark.parametrize("flag", ["-m", "--lora", "--slot-save-path", "--mmproj", "-md"])
def test_a_path_that_cannot_be_looked_at_is_named(flag: str) -> None:
    args = ["config", "show", flag, f"/{'x' * 300}"]  # as in a folder that is closed to this user
    result = CliRunner().invoke(cli.main, args)
    assert (result.exit_code, "xxx" in result.stderr) == (78, True)


def test_a_home_that_cannot_be_looked_at_has_no_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", f"/{'x' * 300}")  # as that of root, which sudo may leave
    assert CliRunner().invoke(cli.main, ["config", "show"]).exit_code == 0


def test_an_alias_in_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('[[worker]]\nbackend = "fake"\n')
    args = ["config", "show", "--config", str(file), "--alias", "\udcff"]
    result = CliRunner().invoke(cli.main, args)
    assert result.exit_code == 78
    assert "is no UTF-8 text" in result.stderr


def test_what_all_models_on_demand_have_in_common_changes_with_a_restart() -> None:
    wide = (WorkerConfig(n_ctx=64),)
    on_demand = PoolConfig(gateway=GatewayConfig(models_dir="models"))
    fresh = PoolConfig(gateway=GatewayConfig(models_dir="models", models_max=9), worker=wide)
    found = needing_restart(on_demand, fresh, is_on_demand=True)
    assert [*found] == ["gateway.models_max", "worker"]
    fresh = PoolConfig(worker=wide)
    assert [*needing_restart(PoolConfig(), fresh, is_on_demand=False)] == []


def test_what_models_of_a_remote_preset_have_in_common_changes_with_a_restart() -> None:
    first = PoolConfig(worker=(WorkerConfig(hf_repo="user/presets"),))
    fresh = PoolConfig(worker=(WorkerConfig(hf_repo="user/presets", n_ctx=64),))
    assert [*needing_restart(first, fresh, is_on_demand=True)] == ["worker"]
