"""Configuration files: what is read, and how mistakes are named."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config.config import (
    GatewayConfig,
    PoolConfig,
    WorkerConfig,
    dump,
    dump_keys,
    load,
    load_keys,
    parse,
)
from protocol.errors import ConfigError
from protocol.wire.sampling import SamplingParams


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_toml_is_read_with_nested_tables(tmp_path: Path) -> None:
    text = """
        [gateway]
        port = 9000
        [[worker]]
        name = "a"
        tensor_split = [3, 1]
        [worker.sampling]
        temperature = 0.1
        [[worker]]
        name = "b"
    """
    config = load(write(tmp_path / "pool.toml", text))
    assert config.gateway.port == 9000
    assert [worker.name for worker in config.worker] == ["a", "b"]
    assert config.worker[0].tensor_split == (3.0, 1.0)
    assert config.worker[0].sampling.temperature == 0.1
    assert config.worker[1].sampling == SamplingParams()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gatway]\nport = 1", "unknown key 'gatway'; did you mean 'gateway'?"),
        ("[gateway]\nprot = 1", "unknown key 'gateway.prot'; did you mean 'port'?"),
        ("[[worker]]\n[[worker]]\nnctx = 1", "unknown key 'worker[1].nctx'; did you mean 'n_ctx'?"),
        ("[[worker]]\nsplit_mode = 'rows'", "'worker[0].split_mode': must be one of none, layer"),
        ("[gateway]\nport = 70000", "'gateway.port': Value must be between 0 <= value <= 65535"),
        ("[gateway]\nport = '80'", "'gateway.port': type must be number, but is string"),
        ("[gateway", "pool.toml: "),
        ('[log]\nfile = "a\\u0000b"', "log.file contains the character NUL"),
        ('[[worker]]\nlora = ["\\u0000"]', "worker.lora contains the character NUL"),
    ],
)
def test_mistakes_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path / "pool.toml", text))
    assert message in str(caught.value)
    assert "pool.toml" in str(caught.value)


def test_missing_file_and_bad_bytes_are_configuration_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load(tmp_path / "bad.toml")


def test_only_a_table_is_a_configuration() -> None:
    with pytest.raises(ConfigError, match="must be a table"):
        parse([])


@given(
    port=st.integers(0, 65535),
    keys=st.lists(st.text('aZ0 é"\\\n'), max_size=3),
    split=st.lists(st.floats(0, 1e6), max_size=4),
    temperature=st.floats(-10, 10),
    count=st.integers(1, 3),
)
def test_dump_is_read_back_equal(
    port: int, keys: list[str], split: list[float], temperature: float, count: int
) -> None:
    worker = WorkerConfig(
        name="w", tensor_split=tuple(split), sampling=SamplingParams(temperature=temperature)
    )
    config = PoolConfig(
        gateway=GatewayConfig(port=port, bind=tuple(keys)),
        worker=(worker,) * count,
        runtime_dir="somewhere",
    )
    assert parse(json.loads(dump(config))) == config


@given(
    keys=st.lists(st.text(), min_size=1, max_size=3),
    admins=st.lists(st.text('aZ0 é"\\\n'), max_size=3),
)
def test_secrets_are_written_for_the_gateway_alone(keys: list[str], admins: list[str]) -> None:
    gateway = GatewayConfig(port=1, api_key=tuple(keys), api_key_admin=tuple(admins))
    config = PoolConfig(gateway=gateway, worker=(WorkerConfig(hf_token="token"),))
    written = parse(json.loads(dump(config)))
    assert (written.gateway.api_key, written.gateway.api_key_admin) == ((), ())
    assert written.worker[0].hf_token == ""
    assert load_keys(written.gateway, dump_keys(gateway)) == gateway


def test_a_server_without_keys_hands_none_on() -> None:
    assert dump_keys(GatewayConfig(api_key_file=("keys",))) == b""


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"nonsense", b'{"port": "x"}', b'{"x": 1}'])
def test_a_gateway_that_misses_its_keys_does_not_start_open(data: bytes) -> None:
    with pytest.raises(ConfigError, match="no keys came"):
        load_keys(GatewayConfig(), data)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("deep.toml", "x = " + "[" * 50_000 + "]" * 50_000, "nested too deep"),
        # Python 3.14 reads JSON to any depth that the stack of C has room for.
        ("deep.json", "[" * 50_000 + "]" * 50_000, "(nested too deep|must be a table)"),
        ("long.toml", "#" + "x" * (16 << 20), "it has more than 16 MiB"),
        ("many.toml", "[[worker]]\n" * 1025, "more than 1024 workers"),
    ],
)
def test_a_file_that_has_no_end_is_refused(
    tmp_path: Path, name: str, text: str, fault: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"{name}: {fault}"):
        load(tmp_path / name)


def test_a_device_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="it has more than 16 MiB"):
        load(Path("/dev/zero"))


@pytest.mark.parametrize("name", ["pool.toml", "pool.json"])
def test_a_byte_order_mark_is_left_out(tmp_path: Path, name: str) -> None:
    text = '{"gateway": {"port": 7}}' if name.endswith("json") else "[gateway]\nport = 7\n"
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert load(tmp_path / name).gateway.port == 7


@pytest.mark.parametrize("share", ["nan", "-inf", "1" + "0" * 400])
def test_each_number_of_a_list_must_be_finite(tmp_path: Path, share: str) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(f"[[worker]]\ntensor_split = [1.0, {share}]\n")
    with pytest.raises(ConfigError, match=r"pool\.toml: Field 'worker\[0\]\.tensor_split\[1\]'"):
        load(path)


def test_a_time_that_the_system_cannot_wait_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text("[gateway.usage]\nfsync_s = 1e308\n")
    with pytest.raises(ConfigError, match=r"gateway\.usage\.fsync_s"):
        load(path)
