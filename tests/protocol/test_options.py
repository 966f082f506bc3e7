"""The table of flags: complete, unambiguous, and read as llama-server reads it."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import PoolConfig, WorkerConfig
from protocol.config.options.argument_readers import unescape
from protocol.config.options.table import (
    OPTIONS,
    SECTIONS,
    apply,
    from_environ,
    read_text,
)
from protocol.errors import ConfigError, InvalidRequest

BY_FLAG = {flag: option for option in OPTIONS for flag in (*option.flags, *option.off)}


def test_no_flag_is_used_twice() -> None:
    flags = [flag for option in OPTIONS for flag in (*option.flags, *option.off)]
    assert len(flags) == len(set(flags))


def test_no_environment_name_is_used_twice() -> None:
    names = [option.env for option in OPTIONS if option.env]
    assert len(names) == len(set(names))


def test_the_default_seed_is_told_as_one_writes_a_random_one() -> None:
    assert BY_FLAG["--seed"].default_text == "-1"


def test_every_option_has_a_field_with_a_text() -> None:
    for option in OPTIONS:
        assert option.row.spec.doc, option.flags
        assert option.section in SECTIONS, option.flags
        assert all(re.fullmatch(r"-\w+|--[a-z][a-z0-9.-]+", flag) for flag in option.flags), option


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        ("-c", "4096", 4096),
        ("-ngl", "all", -1),
        ("-ngl", "20", 20),
        ("-ts", "3,1", (3.0, 1.0)),
        ("-ts", "3/1", (3.0, 1.0)),
        ("-fa", "on", "on"),
        ("-fa", "0", "off"),
        ("-fa", "auto", "auto"),
        ("--api-key", "a,b", ("a", "b")),
        ("--api-key-file", "a,b", ("a,b",)),
        ("--rope-scale", "4", 0.25),
        ("-n", "-2", -1),
        ("-s", "-1", 0xFFFFFFFF),
        ("--samplers", "top_k;temperature", ("top_k", "temperature")),
        ("--sampling-seq", "kt", ("top_k", "temperature")),
        ("-r", r"User:\n", ("User:\n",)),
        ("-l", "15043-1", ((15043, -1.0),)),
        ("-l", "15043+0.5", ((15043, 0.5),)),
        ("-l", "5-inf", ((5, -math.inf),)),
        ("--metrics", "on", True),
        ("--dry-sequence-breaker", "none", ("",)),
        ("-fa", "-1", "auto"),
        ("-rea", "off", "off"),
        ("--reasoning-effort", "default", ""),
        ("--reasoning-effort", "high", "high"),
        ("-ngl", "-2", -1),
        ("-fit", "off", False),
        ("-fitt", "512,256", (512, 256)),
        ("-dev", "CUDA0,CUDA1", ("CUDA0", "CUDA1")),
        ("--poll-draft", "1", 50),
        ("--sse-ping-interval", "0", 86400.0),
        ("-b", "1", 1),
        ("-np", "256", 256),
    ],
)
def test_text_becomes_the_fields_value(flag: str, text: str, value: Any) -> None:
    assert read_text(BY_FLAG[flag], text, flag) == value


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--port", "x", "--port: must be a number, but got 'x'"),
        ("--port", "70000", "Field '--port': Value must be between 0 <= value <= 65535"),
        ("-sm", "rows", "Field '-sm': must be one of none, layer, row, tensor, but got rows"),
        ("--pooling", "avg", "Field '--pooling': must be one of none, mean, cls"),
        ("-l", "15043", "must be TOKEN_ID"),
        ("-fa", "maybe", "must be one of on, off, auto, true, false, 1, 0"),
        ("--chat-template-kwargs", "[1]", "must be a JSON object"),
        ("--reasoning", "perhaps", "must be one of on, off, auto, true, false, 1, 0"),
        ("--metrics", "perhaps", "must be one of on, off, true, false, 1, 0"),
    ],
)
def test_bad_text_is_refused_by_flag(flag: str, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_text(BY_FLAG[flag], text, flag)
    assert message in caught.value.message


def test_a_file_that_cannot_be_read_is_no_wrong_use_of_the_option(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    for flag, name, said in (
        ("--grammar-file", "no/such/file", "cannot read no/such/file: No such file"),
        ("--ui-config-file", str(tmp_path / "list.json"), "list.json: must be a JSON object"),
    ):
        with pytest.raises(ConfigError, match=f"{flag}: .*{said}"):
            read_text(BY_FLAG[flag], name, flag)


def test_file_options_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "grammar.gbnf"
    path.write_text('root ::= "a"')
    assert read_text(BY_FLAG["--grammar-file"], str(path), "x") == 'root ::= "a"'


def test_unescape_follows_llama_server() -> None:
    assert unescape(r"a\n\t\\\"\'\x41\q") == "a\n\t\\\"'A\\q"


def test_environment_is_read_by_llama_servers_names() -> None:
    environ = {
        "LLAMA_ARG_CTX_SIZE": "512",
        "LLAMA_ARG_NO_MMAP": "1",
        "LLAMA_ARG_ENDPOINT_METRICS": "true",
        "LLAMA_API_KEY": "a,b",
        "LLAMA_ARG_PORT": "",
        "LLAMA_ARG_UNHEARD_OF": "1",
    }
    assert from_environ(environ) == {
        "worker.n_ctx": 512,
        "worker.use_mmap": False,
        "gateway.metrics": True,
        "gateway.api_key": ("a", "b"),
    }
    assert from_environ(environ, ["gateway"]).keys() == {"gateway.metrics", "gateway.api_key"}


def test_bad_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="LLAMA_ARG_PORT"):
        from_environ({"LLAMA_ARG_PORT": "x"})


def test_apply_reaches_every_worker() -> None:
    config = PoolConfig(worker=(WorkerConfig(name="a"), WorkerConfig(name="b", n_ctx=7)))
    changes = {"worker.n_ctx": 512, "sampling.top_k": 1, "gateway.port": 1}
    changed = apply(config, changes)
    assert [worker.n_ctx for worker in changed.worker] == [512, 512]
    assert [worker.sampling.top_k for worker in changed.worker] == [1, 1]
    assert [worker.name for worker in changed.worker] == ["a", "b"]
    assert changed.gateway.port == 1


def test_a_model_for_several_workers_is_ambiguous() -> None:
    config = PoolConfig(worker=(WorkerConfig(), WorkerConfig()))
    with pytest.raises(ConfigError, match="--model fits one"):
        apply(config, {"worker.model": "x"})


def test_apply_makes_a_worker_where_there_is_none() -> None:
    assert apply(PoolConfig(), {"worker.count": 2}).worker == (WorkerConfig(count=2),)
