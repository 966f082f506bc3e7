"""Command lines, variables and presets as people write them for llama-server: all of them start."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from protocol.config.options.table import OPTIONS, UNUSED
from worker import cli

LINES = """
-m M.gguf -c 4096 --port 8080
-m M.gguf --host 0.0.0.0 --port 8000 -ngl 99 -c 0 -fa on --jinja
-m M.gguf -ngl 999 -fa -ctk q8_0 -ctv q8_0 --no-mmap --threads 8 -np 4 --cont-batching
-m M.gguf -ngl all --n-cpu-moe 20 -c 65536 --temp 0.6 --top-p 0.95 --top-k 20 --min-p 0.0 --jinja
-m M.gguf -ot .ffn_.*_exps.=CPU -c 16384 -ub 2048 -b 2048 --no-warmup --no-context-shift
-m M.gguf --embedding --pooling last -ub 8192 --verbose-prompt -np -1
-m M.gguf --reranking --pooling rank --host 127.0.0.1 --no-ui --metrics
-m M.gguf --no-jinja --chat-template chatml -r User: -n 256 --seed 1 --keep -1
-m M.gguf --jinja --chat-template-kwargs '{"enable_thinking": false}' --reasoning-format none
-m M.gguf --reasoning off --reasoning-budget 0 --skip-chat-parsing --no-prefill-assistant
-m M.gguf -dev none -ngl 0 --no-kv-offload --no-op-offload --no-repack --mlock --numa distribute
-m M.gguf --lora M.gguf --lora-scaled M.gguf:0.5 --lora-init-without-apply --slots --props
-m M.gguf -md M.gguf --draft-max 16 --draft-min 4 --draft-p-min 0.6 -ngld 99 -cd 4096 -devd none
-m M.gguf --spec-type ngram-mod --spec-ngram-mod-n-max 32 --spec-default
-m M.gguf -t 4 -tb 8 -C ff -Cb 0xff --cpu-strict 1 --prio 2 --poll 0 --poll-batch 1
-m M.gguf --log-disable --log-colors off --log-prefix --log-timestamps --no-log-jsonl -lv 1
-m M.gguf --cache-reuse 256 --ctx-checkpoints 8 --cache-ram 2048 --swa-full --slot-save-path .
-m M.gguf --api-key a,b --api-prefix /llm --threads-http 4 --timeout 1200 --sse-ping-interval -1
-m M.gguf -fit off -fitt 1024,512 -fitc 8192 --no-mmproj --no-agent --no-ui-mcp-proxy --perf
-m M.gguf --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768 --override-kv a.b=int:4
-m M.gguf --samplers 'penalties;dry;top_k;temperature' --dry-sequence-breaker none
-m M.gguf --grammar 'root ::= "a"' --logit-bias 15043-1 --ignore-eos --mirostat 2
-m M.gguf --simple-io --color on --no-display-prompt -i -sys Hi -st
"""

FOUND = [
    line
    for line in Path(__file__).with_name("command_lines.txt").read_text().splitlines()
    if not line.startswith("#")
]
"""As other people have written them."""

VARIABLES = {
    "LLAMA_ARG_CTX_SIZE": "8192",
    "LLAMA_ARG_N_PARALLEL": "2",
    "LLAMA_ARG_N_GPU_LAYERS": "99",
    "LLAMA_ARG_FLASH_ATTN": "1",
    "LLAMA_ARG_JINJA": "0",
    "LLAMA_ARG_NO_MMAP": "1",
    "LLAMA_ARG_CONT_BATCHING": "1",
    "LLAMA_ARG_ENDPOINT_METRICS": "1",
    "LLAMA_ARG_REASONING": "off",
    "LLAMA_ARG_CHAT_TEMPLATE_KWARGS": '{"a": 1}',
    "LLAMA_ARG_N_CPU_MOE": "4",
    "LLAMA_ARG_MMPROJ_AUTO": "0",
    "LLAMA_ARG_AGENT": "0",
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": "8",
    "LLAMA_ARG_LOG_JSONL": "on",
    "MTMD_BACKEND_DEVICE": "none",
    "LLAMA_API_KEY": "k",
    "HF_TOKEN": "t",
}

PRESET = """
version = 1

[*]
ctx-size = 4096
n-gpu-layers = 99
no-jinja = true
reasoning = off

[small]
model = M.gguf
temp = 0.6
LLAMA_ARG_N_CPU_MOE = 3
chat-template-kwargs = {"enable_thinking": false}
load-on-startup = true
override-tensor = exps=CPU

[code]
fim-qwen-1.5b-default = true
port = 9
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with something that looks like a model, and an environment of nobody."""
    for name in [row.env for row in OPTIONS] + [row.env for row in UNUSED]:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "M.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def shown(*args: str) -> str:
    result = CliRunner().invoke(cli.main, ["config", "show", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("line", LINES.strip().splitlines())
def test_a_command_line_is_understood(line: str) -> None:
    assert 'alias = "M"' in shown(*shlex.split(line))


def test_names_and_labels_that_are_given_one_by_one_add_up() -> None:
    text = shown("-m", "M.gguf", "-a", "b", "--alias", "c, a", "--tags", "x", "--tags", "y,z")
    assert 'alias = "a"' in text and 'aliases = ["a", "b", "c"]' in text
    assert 'tags = ["x", "y", "z"]' in text
    assert 'alias = "a"' in shown("-m", "M.gguf", "-a", "a, ")
    assert 'alias = "M"' in shown("-m", "M.gguf", "-a", " , ")


@pytest.mark.slow
@pytest.mark.parametrize("line", FOUND)
def test_what_others_have_written_is_understood(folder: Path, line: str) -> None:
    (folder / "models").mkdir()
    (folder / "models" / "M.gguf").write_bytes(b"GGUF")
    (folder / "think.gbnf").write_text('root ::= "a"')
    (folder / "template.jinja").write_text("{{ messages[0]['content'] }}")
    shown(*shlex.split(line))


def test_enough_command_lines_of_others_are_known() -> None:
    assert len(FOUND) >= 60


def test_an_environment_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in VARIABLES.items():
        monkeypatch.setenv(name, text)
    text = shown("-m", "M.gguf")
    for line in (
        *("n_ctx = 8192", "n_slots = 2", "jinja = false", "use_mmap = false", "n_cpu_moe = 4"),
        *('reasoning = "off"', "mmproj_auto = false", "n_draft = 8", 'format = "json"'),
        *('mmproj_device = "none"', 'api_key = "(hidden)"', 'flash_attn = "on"'),
    ):
        assert f"\n{line}\n" in text, line


def test_a_preset_file_is_understood(folder: Path) -> None:
    from protocol.config.config import GatewayConfig, PoolConfig
    from worker.models.catalog import open_catalog

    (folder / "models.ini").write_text(PRESET)
    catalog = open_catalog(PoolConfig(gateway=GatewayConfig(models_preset="models.ini")), {})
    (small,), (code,) = (catalog.entries[name].workers for name in ("small", "code"))
    assert (small.jinja, small.n_cpu_moe, small.reasoning) == (False, 3, "off")
    assert small.override_tensor == ("exps=CPU",) and small.n_ctx == 4096
    assert small.chat_variables["enable_thinking"] is False
    assert code.hf_file == "qwen2.5-coder-1.5b-q8_0.gguf" and code.n_batch == 1024


def write_host_file(folder: Path, text: str) -> None:
    path = folder / "home" / "llama.cpp" / "config.ini"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_llama_cpps_own_configuration_file_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_host_file(
        folder, "threads = 3\nport = 9\nunheard-of = 1\n[*]\nctx-size = 512\nmlock = on"
    )
    monkeypatch.setenv("LLAMA_ARG_PORT", "10")
    text = shown("-m", "M.gguf", "-c", "1024")
    for line in ("n_threads = 3", "port = 10", "n_ctx = 1024", "use_mlock = true"):
        assert f"\n{line}\n" in text, line


def test_a_configuration_file_of_ours_takes_its_place(folder: Path) -> None:
    write_host_file(folder, "ctx-size = 512")
    (folder / "pool.toml").write_text('[[worker]]\nmodel = "M.gguf"\n')
    assert "\nn_ctx = 0\n" in shown("--config", "pool.toml")


def test_a_bad_configuration_file_ends_the_start(folder: Path) -> None:
    write_host_file(folder, "port = x")
    result = CliRunner().invoke(cli.main, ["config", "show", "-m", "M.gguf"])
    assert (
        result.exit_code == 78 and "config.ini: [default]: port: must be a number" in result.output
    )
