"""What the command line takes: every option of the documents, and what comes of it."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from protocol.config import config as configs
from protocol.config.options import table as options
from protocol.config.options.table import OPTIONS, UNUSED
from protocol.errors import ConfigError
from protocol.wire.schema import read
from tests.compat.seed_options import API_LIKE_OAI, FOREIGN, SERVER, count, uses
from worker import cli
from worker.engine.fake.backend import FakeBackend
from worker.host.topology import read_host
from worker.settings import arguments
from worker.settings.arguments import CONTEXT, paired

VARIABLES = [row.env for row in OPTIONS] + [row.env for row in UNUSED]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep variables of the person who runs the tests out."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield


def given(*args: str) -> arguments.ExplicitSettings:
    """Parse the arguments of `serve` without running it."""
    said = serve().main(list(args), standalone_mode=False)
    assert isinstance(said, arguments.ExplicitSettings)
    return said


@cache
def serve() -> click.Command:
    """Make a command with the options of `serve` that returns what it was given."""

    @click.pass_context
    def keep(ctx: click.Context, /, **values: object) -> arguments.ExplicitSettings:
        return arguments.given(values, configs_sections())

    command = arguments.OptionCommand("serve", callback=keep, context_settings=CONTEXT)
    arguments.with_options(*configs_sections())(command)
    return command


def configs_sections() -> tuple[str, ...]:
    return cli._SETTABLE


def shown(*args: str) -> Result:
    return CliRunner().invoke(cli.main, ["config", "show", *args])


def test_the_documents_options_are_counted_as_the_contract_counts_them() -> None:
    assert (count(SERVER), count(API_LIKE_OAI), count(FOREIGN)) == (121, 9, 52)


@pytest.mark.parametrize("use", uses(SERVER) + uses(API_LIKE_OAI), ids=" ".join)
def test_every_option_of_the_documents_is_taken(use: list[str], tmp_path: Path) -> None:
    flag, *values = use
    if flag in ("-h", "--help", "--usage", "--version"):
        where = [] if flag == "--version" else ["serve"]
        assert CliRunner().invoke(cli.main, [*where, flag]).exit_code == 0
        return
    (tmp_path / "file").write_text("{}")
    samples = {
        "@DIR": str(tmp_path),
        "@FILE": str(tmp_path / "file"),
        "@JSON": str(tmp_path / "file"),
        "@NEW": str(tmp_path / "new"),
    }
    said = given(flag, *(samples.get(value, value) for value in values))
    if flag in ("-e", "--escape", "--no-escape"):
        return
    assert said.settings or said.unused


def test_options_of_other_programs_give_one_line_that_names_them() -> None:
    args = [word for use in uses(FOREIGN) for word in use]
    said = given(*args)
    assert len(said.unused) == 52
    assert not said.settings
    (line,) = arguments.warnings(said.unused)
    assert line.startswith("without effect, options of other programs: -co --no-display-prompt -p")
    assert len(line.partition(": ")[2].split()) == 52


def test_options_without_effect_say_why_and_normal_states_say_nothing() -> None:
    said = given("-cb", "--swa-full", "--cfg-scale", "1.0", "--dump-kv-cache", "-dt", "0.1")
    assert arguments.warnings(said.unused) == [
        "--dump-kv-cache was removed from llama.cpp",
        "-dt was removed from llama.cpp",
    ]


@pytest.mark.parametrize(
    "row", [row for row in UNUSED if not row.is_foreign], ids=lambda row: row.flags[-1]
)
def test_every_option_that_sets_nothing_says_so_or_ends_the_start(row: options.Unused) -> None:
    said = given(row.flags[-1], *["odd" if row.low is None else "7"] * row.n_values)
    assert not said.settings
    if row.is_refused:
        with pytest.raises(ConfigError, match=f"{row.flags[-1]} "):
            arguments.warnings(said.unused)
    else:
        lines = [] if "*" in row.harmless else [f"{row.flags[-1]} {row.why}"]
        assert arguments.warnings(said.unused) == lines


def test_a_warning_names_the_option_as_it_was_given() -> None:
    for words, name in (("-ps 0.1", "-ps"), ("--draft_p_split=0.1", "--draft-p-split")):
        (line,) = arguments.warnings(given(*words.split()).unused)
        assert line.startswith(f"{name} needs several drafts")


@pytest.mark.slow
def test_the_version_is_llamapools_and_help_names_the_options() -> None:
    version = CliRunner().invoke(cli.main, ["--version"])
    assert "llamapool" in version.stdout and any(char.isdigit() for char in version.stdout)
    for flag in ("-h", "--help", "--usage"):
        text = CliRunner().invoke(cli.main, ["serve", flag]).stdout
        assert "--ctx-size" in text and "--threads" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--no-such", "Try 'main serve --help' for help."),
        ("--port 99999", "for '--port': Value must be between 0 <= value <= 65535"),
        ("--temp x", "for '--temp' / '--temperature': must be a number, but got 'x'"),
    ],
)
def test_a_wrong_option_is_named_once_with_where_help_is(words: str, said: str) -> None:
    assert said in CliRunner().invoke(cli.main, ["serve", *words.split()]).output


def test_help_begins_with_examples_and_has_the_groups_of_the_documents() -> None:
    text = CliRunner().invoke(cli.main, ["serve", "--help"]).stdout
    first_screen = "\n".join(text.splitlines()[:24])
    assert "llamapool serve -m model.gguf -c 16384 -np 4" in first_screen
    places = [text.index(f"\n{title}:\n") for title in ("Options", *options.GROUPS)]
    assert places == sorted(places)
    assert places[0] < text.index("--config PATH") < places[1]
    assert text.index("--gpt-oss-20b-default") > places[-1]
    assert len(re.findall(r"^ +-m, --model ", text, re.MULTILINE)) == 1


def test_help_leaves_out_groups_that_a_command_does_not_have() -> None:
    text = CliRunner().invoke(cli.main, ["worker", "--help"]).stdout
    assert "--connect TEXT" in text and "--n-predict" in text and "--port" not in text


def test_a_server_without_tools_starts_and_says_what_stays_disabled() -> None:
    said = given("--tools", "all", "--webui-mcp-proxy", "--no-agent", "--no-ui-mcp-proxy")
    tools, proxy = arguments.warnings(said.unused)
    assert "so /tools answers 403 (feature_disabled)" in tools and "/cors-proxy" in proxy


def test_underscores_stand_for_dashes() -> None:
    assert given("--ctx_size", "5", "--no_mmap").changes == {
        "worker.n_ctx": 5,
        "worker.use_mmap": False,
    }


def test_the_command_line_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "1")
    monkeypatch.setenv("LLAMA_ARG_MLOCK", "enabled")
    monkeypatch.setenv("LLAMA_ARG_KEEP", "7")
    said = given("-c", "2")
    assert dict(said.settings) == {
        "worker.n_ctx": (2, "--ctx-size"),
        "worker.use_mlock": (True, "LLAMA_ARG_MLOCK"),
        "sampling.n_keep": (7, "LLAMA_ARG_KEEP"),
    }


@pytest.mark.parametrize("text", ["true", "1", "on", "enabled", "TRUE"])
def test_booleans_of_the_environment_are_llama_servers(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_ENDPOINT_METRICS", text)
    monkeypatch.setenv("LLAMA_ARG_MEMORY_F32", text)
    monkeypatch.setenv("LLAMA_ARG_NO_SLOTS", text)
    assert given().changes["gateway.metrics"] is True
    assert given().changes["worker.cache_type_v"] == "f32"


def test_every_option_has_a_variable_of_its_own() -> None:
    assert all(VARIABLES)
    assert len(VARIABLES) == len(set(VARIABLES))


def test_unused_variables_warn_like_their_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_DEFRAG_THOLD", "0.1")
    monkeypatch.setenv("LLAMA_ARG_KV_UNIFIED", "1")
    monkeypatch.setenv("LLAMA_ARG_COLOR", "0")
    lines = arguments.warnings(given().unused)
    assert lines == ["LLAMA_ARG_DEFRAG_THOLD was removed from llama.cpp"]


def test_escapes_can_be_left_alone() -> None:
    assert given("-r", r"a\n").changes == {"sampling.stop": ("a\n",)}
    assert given("-r", r"a\n", "--no-escape").changes == {"sampling.stop": (r"a\n",)}
    assert given("--no-escape", "-r", r"a\n").changes == {"sampling.stop": (r"a\n",)}


def test_options_with_an_optional_value_go_without_it() -> None:
    said = given("-fa", "-c", "5", "--numa", "--log-colors", "off")
    assert said.changes == {
        "worker.flash_attn": "on",
        "worker.n_ctx": 5,
        "worker.numa": "distribute",
        "log.colors": "off",
    }


def test_repeated_keys_and_lists_of_them_add_up() -> None:
    said = given("--api-key", "a,b", "--api-key", "c")
    assert said.changes == {"gateway.api_key": ("a", "b", "c")}


def test_two_values_may_be_written_as_one_or_as_two() -> None:
    flag = "--lora_scaled"
    assert paired([flag, "f", "0.5", "-c", "1"]) == [flag, "f:0.5", "-c", "1"]
    assert paired([flag, "f:0.5", "-c", "1"]) == [flag, "f:0.5", "-c", "1"]
    assert paired(["--lora", "f", "-c", "1"]) == ["--lora", "f", "-c", "1"]
    assert paired(["--lora", "f"]) == ["--lora", "f"]
    assert paired(["--control-vector-layer-range", "1", "2"])[1:] == ["1,2"]


def test_config_show_prints_toml_that_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text('[[worker]]\nbackend = "fake"\ncount = 2\nn_ctx = 512\n')
    text = shown("--config", str(path), "-np", "3").stdout
    (tmp_path / "again.toml").write_text(text)
    again = configs.load(tmp_path / "again.toml")
    host = read_host().name
    assert [worker.name for worker in again.worker] == [f"{host}/fake-1", f"{host}/fake-2"]
    assert {worker.n_slots for worker in again.worker} == {3}


def test_paths_of_options_are_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
    (beside / "pool.toml").write_text(
        '[gateway]\nmedia_path = "media"\n[[worker]]\nbackend = "fake"\n'
    )
    monkeypatch.chdir(here)
    monkeypatch.setenv("LLAMA_ARG_STATIC_PATH", "www")
    flags = ("--api-key-file", "k.toml", "--ssl-key-file", "tls/key", "--ssl-cert-file", "tls/cert")
    more = ("--usage-dir", "u", "--log-file", "log", "--slot-save-path", "slots")
    (here / "slots").mkdir()
    text = shown("--config", "../beside/pool.toml", *flags, *more).stdout
    (tmp_path / "again.toml").write_text(text)
    found = configs.load(tmp_path / "again.toml")
    assert found.gateway.api_key_file == (f"{here}/k.toml",)
    assert found.gateway.ssl_key_file == f"{here}/tls/key"
    assert found.gateway.ssl_cert_file == f"{here}/tls/cert"
    assert found.gateway.usage_dir == f"{here}/u"
    assert found.gateway.static_path == f"{here}/www"
    assert Path(found.gateway.media_path).resolve() == beside / "media"
    assert found.log.file == f"{here}/log"
    assert found.worker[0].slot_save_path == f"{here}/slots"


def test_config_show_says_where_each_value_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(
        "[gateway]\nport = 9000\n\n[[worker]]\nbackend = 'fake'\n"
        "[worker.sampling]\nmax_tokens = 5\n[[worker]]\nname = 'b'\nbackend = 'fake'\n"
    )
    monkeypatch.setenv("LLAMA_ARG_TOP_K", "7")
    result = shown("--origin", "--config", str(path), "-c", "512", "--api-key", "secret")
    assert result.exit_code == 0, result.output
    lines = dict(line.split(" = ", 1) for line in result.stdout.splitlines() if " = " in line)
    assert lines["port"].split() == ["9000", "#", f"{path}:2"]
    assert lines["n_ctx"].split() == ["512", "#", "--ctx-size"]
    assert lines["top_k"].split() == ["7", "#", "LLAMA_ARG_TOP_K"]
    assert lines["temperature"].split() == ["0.8", "#", "default"]
    assert lines["n_threads"].split()[1:] == ["#", "worked", "out"]
    assert lines["use_mmap"].split() == ["true", "#", "worked", "out"]
    assert lines["name"].split() == ['"b"', "#", f"{path}:9"]
    assert f"n_predict = 5{'':<30}# {path}:7".split() == [
        word
        for line in result.stdout.splitlines()
        if line.startswith("n_predict = 5")
        for word in line.split()
    ]
    assert "secret" not in result.stdout
    assert json.loads(lines["api_key"].split("#")[0]) == ["(hidden)"] or "(hidden)" in result.stdout


@pytest.mark.parametrize(
    ("args", "line"), [(["--mmap"], "true # --mmap"), (["--no-mmap"], "false # --no-mmap")]
)
def test_config_show_names_the_flag_that_settled_the_mapping(args: list[str], line: str) -> None:
    text = shown("--origin", *args).stdout
    (found,) = [one for one in text.splitlines() if one.startswith("use_mmap")]
    assert found.split()[2:] == line.split()


def test_config_show_fetches_no_model() -> None:
    by_url = shown("--model-url", "http://127.0.0.1:1/some.gguf").stdout
    assert 'model = "models/some.gguf"' in by_url and '/some-1"' in by_url
    assert 'model_url = "http://127.0.0.1:1/some.gguf"' in by_url
    by_hub = shown("--hf-repo", "user/some:q8_0", "--hf-token", "secret").stdout
    assert 'hf_repo = "user/some:q8_0"' in by_hub and 'alias = "user/some:q8_0"' in by_hub
    assert "secret" not in by_hub


def test_config_show_refuses_what_serve_refuses() -> None:
    assert shown("-m", "no/such/file.gguf").exit_code == 78
    assert shown("--ctx-size", "x").exit_code == 2


FILES = (
    *("--chat-template-file", "--grammar-file", "--json-schema-file", "--ui-config-file"),
    *("--config", "--model", "--mmproj", "--lora", "--control-vector", "--model-draft"),
)


@pytest.mark.parametrize("flag", FILES)
def test_a_file_that_cannot_be_read_is_a_wrong_configuration(flag: str) -> None:
    said = shown(flag, "no/such/file")
    assert (said.exit_code, "no/such/file" in said.output) == (78, True), said.output


SAMPLING = [
    (["-n", "5"], "n_predict", 5),
    (["-n", "-2"], "n_predict", -1),
    (["--keep", "-1"], "n_keep", -1),
    (["-s", "7"], "seed", 7),
    (["--samplers", "top_k;tfs_z;typical_p"], "samplers", ("top_k", "tfs_z", "typ_p")),
    (["--sampling-seq", "kfyt"], "samplers", ("top_k", "tfs_z", "typ_p", "temperature")),
    (["--ignore-eos"], "ignore_eos", True),
    (["--reasoning-budget", "0"], "reasoning_budget_tokens", 0),
    (["--reasoning-budget-message", "Enough."], "reasoning_budget_message", "Enough."),
    (["--penalize-nl"], "penalize_nl", True),
    (["--temp", "0.1"], "temperature", 0.1),
    (["--top-k", "3"], "top_k", 3),
    (["--top-p", "0.5"], "top_p", 0.5),
    (["--min-p", "0.2"], "min_p", 0.2),
    (["--top-n-sigma", "1"], "top_n_sigma", 1.0),
    (["--xtc-probability", "0.5"], "xtc_probability", 0.5),
    (["--xtc-threshold", "0.2"], "xtc_threshold", 0.2),
    (["--tfs", "0.9"], "tfs_z", 0.9),
    (["--typical", "0.9"], "typical_p", 0.9),
    (["--repeat-last-n", "-1"], "repeat_last_n", -1),
    (["--repeat-penalty", "1.1"], "repeat_penalty", 1.1),
    (["--presence-penalty", "0.5"], "presence_penalty", 0.5),
    (["--frequency-penalty", "0.5"], "frequency_penalty", 0.5),
    (["--dry-multiplier", "0.8"], "dry_multiplier", 0.8),
    (["--dry-base", "2"], "dry_base", 2.0),
    (["--dry-allowed-length", "3"], "dry_allowed_length", 3),
    (["--dry-penalty-last-n", "9"], "dry_penalty_last_n", 9),
    (["--dry-sequence-breaker", r"\n"], "dry_sequence_breakers", ("\n",)),
    (["--dynatemp-range", "0.5"], "dynatemp_range", 0.5),
    (["--dynatemp-exp", "2"], "dynatemp_exponent", 2.0),
    (["--mirostat", "2"], "mirostat", 2),
    (["--mirostat-lr", "0.2"], "mirostat_eta", 0.2),
    (["--mirostat-ent", "4"], "mirostat_tau", 4.0),
    (["--adaptive-target", "0.5"], "adaptive_target", 0.5),
    (["--adaptive-decay", "0.5"], "adaptive_decay", 0.5),
    (["-l", "5+1", "--logit-bias", "6-2"], "logit_bias", ((5, 1.0), (6, -2.0))),
    (["--grammar", 'root ::= "a"'], "grammar", 'root ::= "a"'),
    (["-r", "User:", "-r", r"\n"], "stop", ("User:", "\n")),
    (["--no-cache-prompt"], "cache_prompt", False),
    (["-bs"], "backend_sampling", True),
]  # fmt: skip


@pytest.mark.parametrize(("args", "field", "value"), SAMPLING, ids=lambda one: str(one)[:40])
def test_an_option_is_what_a_request_takes_that_leaves_its_field_out(
    args: list[str], field: str, value: object
) -> None:
    pool = options.apply(configs.PoolConfig(), given(*args).changes)
    card = FakeBackend(replace(pool.worker[0], backend="fake")).card
    assert getattr(read(card.defaults, {}), field) == value


def test_every_sampling_option_is_among_them() -> None:
    fields = {option.field.partition(".")[2] for option in OPTIONS if option.section == "sampling"}
    assert fields == {field for _, field, _ in SAMPLING}
