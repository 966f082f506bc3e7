"""Values that llama-server starts with: they have its effect, or a warning says what is used."""

from collections.abc import Iterator
from typing import Any

import click
import pytest

from protocol.config.options.out_of_range import OUT_OF_RANGE
from protocol.config.options.table import OPTIONS
from protocol.errors import ConfigError
from protocol.wire.sampling import INT32_MAX
from tests.worker.settings.test_arguments import VARIABLES, given
from worker.settings.preset import read_preset

LAYERS = "-ngl --n-gpu-layers -ngld"
THREADS = "-t -tb -td -tbd --threads-http"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep variables of the person who runs the tests out."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield


@pytest.mark.parametrize(
    ("flags", "text", "value"),
    [
        ("-fa --log-colors", "-1", "auto"),
        ("--cpu-strict --cpu-strict-batch --cpu-strict-draft --cpu-strict-batch-draft", "-1", True),
        ("--cpu-strict", "2", True),
        (LAYERS, "2147483647", 10000),
        (THREADS, "-2", -1),
        ("-b", "-1", INT32_MAX),
        ("-b", "2147483647", INT32_MAX),
        ("-ub", "0", 0),
        ("-ub", "-1", 0),
        ("-mg", "-1", -1),
        ("--fit-ctx", "-1", INT32_MAX),
        ("--rope-freq-scale --rope-scale", "-1", -1.0),
        ("--keep", "-2", -1),
        ("--repeat-penalty", "99999999999", 1e6),
        ("--timeout", "-1", float(INT32_MAX)),
        ("--threads-http", "0", 0),
        ("--sse-ping-interval", "0", 86400.0),
        ("--cache-ram --parallel --image-min-tokens --image-max-tokens", "-2", -1),
        ("--models-max", "-1", 0),
        ("--log-verbosity", "-1", 1),
        ("--kv-unified-per-slot --spec-draft-n-min", "-1", 0),
        ("--mtmd-batch-max-tokens", "0", 1),
        ("--slot-prompt-similarity --spec-draft-p-min", "2", 1),
        ("--slot-prompt-similarity", "-1", 1e-9),
        ("--spec-draft-p-min --adaptive-decay", "-1", 0),
        ("--adaptive-decay", "2", 0.99),
        ("--cpu-mask --cpu-mask-batch --cpu-mask-draft", "0", "all"),
        ("--temp", "-1", 0),
        ("--top-k", "-1", -1),
        ("--top-k", "-99999999999", -INT32_MAX),
        ("--top-p --xtc-probability", "2", 2.0),
        ("--min-p", "-0.5", -0.5),
        ("--dry-base", "0.5", 1.75),
        ("--webui-config", "", ""),
        ("-Cr -Crb -Crd -Crbd", "-1", "0-1"),
        ("-Cr", "2-", "2-511"),
        ("-Cr", "0-1,3", "0-1,3"),
    ],
)
def test_a_value_beyond_the_limits_has_llama_servers_effect(
    flags: str, text: str, value: Any
) -> None:
    for flag in flags.split():
        found = given(flag, text)
        changes = dict(found.changes)
        changes.pop("gateway.models_on_demand", None)  # --models-max means the router
        assert list(changes.values()) == [value], flag
        assert not found.not_used, flag


@pytest.mark.parametrize(
    ("flag", "text", "value", "warning"),
    [
        ("--poll", "-2", 100, "would keep the CPU busy for ever: 100, the longest, is used"),
        ("--poll-batch", "101", 100, "would keep the CPU busy for ever"),
        ("--rope-freq-base", "-1", 0.0, "would make every logit not a number: the model's own"),
        ("--rope-scale", "0", 0.0, "would make every logit not a number: the model's own"),
        ("--yarn-orig-ctx", "-1", 0, "would leave no context with YaRN"),
        ("-to", "0", 600.0, "would refuse every request with a body: 600 seconds are used"),
        ("--draft", "1000", 64, "is more than is ever drafted: 64 is used"),
        ("--dry-allowed-length", "-1", 0, "is no length: 0 is used"),
        ("--embd-normalize", "-2", 2, "is no norm: 2, the Euclidean one, is used"),
        ("--samplers", "top_k;a;b", ("top_k",), "names unknown samplers, which are left out: 'a',"),
        ("--samplers", "abc", (), "names unknown samplers, which are left out: 'abc'"),
        ("--sampling-seq", "9k", ("top_k",), "names unknown samplers, which are left out: '9'"),
    ],
)
def test_what_would_only_do_harm_is_replaced_with_a_warning(
    flag: str, text: str, value: Any, warning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (option,) = (option for option in OPTIONS if flag in option.flags)
    found = given(flag, text)
    assert list(found.changes.values()) == [value]
    (line,) = found.not_used
    assert line.startswith(f"{flag} {text} {warning}")
    if option.section in ("worker", "sampling"):
        preset = read_preset({flag.lstrip("-"): text}, place="p")
        assert preset.settings == found.changes
        assert preset.warnings == (f"p: {line.lstrip('-')}",)
    monkeypatch.setenv(option.env, text)
    found = given()
    assert list(found.changes.values()) == [value]
    assert found.not_used == [line.replace(flag, option.env)]


def test_a_variable_that_a_flag_overrides_is_not_warned_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLAMA_ARG_POLL", "500")
    assert not given("--poll", "50").not_used


@pytest.mark.parametrize("text", ["1x", "1.5", "abc", ""])
@pytest.mark.parametrize("flag", ["-t", "-b", "-ub", "-mg", "--poll", "--keep", "-np"])
def test_what_is_no_number_is_refused(flag: str, text: str) -> None:
    with pytest.raises(click.BadParameter, match="must be a number"):
        given(flag, text)


@pytest.mark.parametrize("args", [("-b", "0"), ("-np", "257"), ("--repeat-penalty", "0")])
def test_what_would_end_a_worker_is_refused(args: tuple[str, str]) -> None:
    with pytest.raises(click.BadParameter, match="Value must be between"):
        given(*args)


def test_a_word_in_the_variable_of_a_flag_is_ignored_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_HOST", "CPU_MOE", "ENDPOINT_METRICS", "OFFLINE"):
        monkeypatch.setenv(f"LLAMA_ARG_{name}", "abc")
        found = given()
        assert not found.settings
        assert found.not_used == [f"LLAMA_ARG_{name} abc is neither on nor off, and is ignored"]
        monkeypatch.delenv(f"LLAMA_ARG_{name}")
    monkeypatch.setenv("LLAMA_ARG_NO_HOST", "0")
    assert given().changes == {"worker.no_host": False}


def test_a_word_in_the_variable_of_what_can_be_turned_off_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLAMA_ARG_MMAP", "abc")
    with pytest.raises(ConfigError, match="LLAMA_ARG_MMAP: must be one of on, off"):
        given()


@pytest.mark.parametrize("flag", ["--models-dir", "--models-preset"])
@pytest.mark.parametrize("model", ["-m", "--model-url", "--hf-repo"])
def test_a_model_takes_precedence_over_models_on_demand(
    flag: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = given(flag, "models", model, "x")
    assert list(found.changes.values()) == ["x"]
    (line,) = found.not_used
    assert line.startswith(f"{flag} is not used, because --")
    assert given(flag, "models").changes
    monkeypatch.setenv("LLAMA_ARG_MODELS_DIR", "models")
    assert list(given(model, "x").changes.values()) == ["x"]


@pytest.mark.parametrize("flag", ["--alias", "--mmproj", "--hf-file"])
def test_an_option_of_one_model_is_not_used_with_models_on_demand(flag: str) -> None:
    """As in llama-server, whose router drops it."""
    found = given("--models-dir", "models", flag, "x")
    assert list(found.changes.values()) == ["models"]
    (line,) = found.not_used
    assert line.startswith(f"{flag} is not used with --models-dir: ")
    assert not given("-m", "x", flag, "x").not_used


@pytest.mark.parametrize("flags", [("--models-max", "2"), ("--no-models-autoload",)])
def test_an_option_of_the_router_alone_means_the_router(flags: tuple[str, ...]) -> None:
    assert given(*flags).changes["gateway.models_on_demand"] is True
    assert "gateway.models_on_demand" not in given("--port", "1").changes


def test_every_field_of_the_table_is_an_options() -> None:
    assert {option.field for option in OPTIONS} >= set(OUT_OF_RANGE)
