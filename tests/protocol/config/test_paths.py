"""Relative paths of a configuration file begin at its folder, in every process that reads it."""

import re
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.settings import load_pool
from protocol.config.config import GatewayConfig, LogConfig, PoolConfig, WorkerConfig
from protocol.config.limits import LimitsConfig
from protocol.config.paths import PATHS, anchored
from protocol.config.rollout_config import GoldenConfig, RolloutConfig
from protocol.config.usage_config import UsageConfig
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import FieldRow, describe
from worker.settings.arguments import ExplicitSettings
from worker.settings.pool_config import read_pool_config

TABLES = (
    *(PoolConfig, GatewayConfig, WorkerConfig, LogConfig, LimitsConfig, UsageConfig),
    *(RolloutConfig, GoldenConfig, SamplingParams),
)
LIKE_A_PATH = re.compile(r"\b(files?|folders?|sockets?|paths?)\b", re.IGNORECASE)
NO_PATHS = {
    *("api_prefix", "predict_route", "health_route"),  # of URLs
    *("api_key", "model_url", "mmproj_url", "hf_file", "hf_repo_draft"),  # beside a file
    *("alias", "spec_type"),
    *("load_mode", "lazy_mode"),  # ways to read one
}


def texts(cls: type) -> Iterator[FieldRow]:
    """Yield the settings of a table that are texts, or lists of texts."""
    for row in describe(cls):
        if row.kind in (str, str | None, tuple[str, ...]):
            yield row


def tables_below(cls: type) -> Iterator[type]:
    yield cls
    for row in describe(cls):
        for kind in (row.kind, *getattr(row.kind, "__args__", ())):
            if is_dataclass(kind) and isinstance(kind, type):
                yield from tables_below(kind)


def test_every_table_is_looked_at() -> None:
    assert set(tables_below(PoolConfig)) == set(TABLES)


@pytest.mark.parametrize("cls", TABLES)
def test_every_setting_that_is_a_path_is_in_the_table(cls: type) -> None:
    named = {row.name for row in texts(cls)}
    like = {row.name for row in texts(cls) if LIKE_A_PATH.search(row.spec.doc)}
    table = set(PATHS.get(cls, ()))
    assert table <= named
    assert like - table <= NO_PATHS, "a path, or an entry of NO_PATHS?"


def values(cls: type, text: dict[str, str]) -> dict[str, Any]:
    kinds = {row.name: row.kind for row in texts(cls)}
    return {
        name: (text.get(name, name),) if kinds[name] is not str else text.get(name, name)
        for name in PATHS[cls]
    }


ENDPOINTS = {"bind": "ipc://bind", "connect": "ipc://connect", "host": "127.0.0.1, host.sock"}


@pytest.fixture
def relative() -> PoolConfig:
    """Return a configuration in which every path is the name of its key."""
    return PoolConfig(
        gateway=GatewayConfig(**values(GatewayConfig, ENDPOINTS)),
        worker=(WorkerConfig(**values(WorkerConfig, ENDPOINTS)),),
        log=LogConfig(**values(LogConfig, {})),
        **values(PoolConfig, {}),
    )


def test_every_path_is_resolved(relative: PoolConfig, tmp_path: Path) -> None:
    moved = anchored(relative, tmp_path)
    for part in (moved, moved.gateway, moved.worker[0], moved.log):
        for name in PATHS[type(part)]:
            expected = {
                "bind": f"ipc://{tmp_path}/bind",
                "connect": f"ipc://{tmp_path}/connect",
                "host": f"127.0.0.1,{tmp_path}/host.sock",
            }.get(name, f"{tmp_path}/{name}")
            assert getattr(part, name) in (expected, (expected,))
    assert anchored(moved, Path("/elsewhere")) == moved
    assert anchored(PoolConfig(), tmp_path) == PoolConfig()


def test_what_is_no_path_stays(tmp_path: Path) -> None:
    gateway = GatewayConfig(
        host="0.0.0.0, ::1", bind=("tcp://127.0.0.1:5", "ipc://@x", "inproc://x"), usage_dir="/u"
    )
    worker = WorkerConfig(lora=("a.gguf", "~nobody-of-this-name/b.gguf:0.5"))
    moved = anchored(PoolConfig(gateway=gateway, worker=(worker,)), tmp_path)
    assert moved.gateway == gateway
    assert moved.worker[0].lora == (
        f"{tmp_path}/a.gguf",
        f"{tmp_path}/~nobody-of-this-name/b.gguf:0.5",
    )


def test_the_gateway_alone_reads_a_file_as_serve_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(
        """
        runtime_dir = "run"
        [gateway]
        static_path = "www"
        host = "x.sock"
        [log]
        file = "pool.log"
        """
    )
    monkeypatch.delenv("LLAMAPOOL_PARENT", raising=False)
    alone, served = load_pool(path), read_pool_config(path, ExplicitSettings({}, ()))
    assert alone == replace(served, worker=alone.worker)
    assert (alone.log.file, alone.gateway.host) == (f"{tmp_path}/pool.log", f"{tmp_path}/x.sock")
