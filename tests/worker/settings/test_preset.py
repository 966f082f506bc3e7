"""Sections of a preset file as settings, and settings as options again."""

from typing import Any

import pytest

from protocol.errors import ConfigError
from worker.settings.preset import Preset, as_args, as_section, read_preset


def settings(**pairs: str) -> dict[str, Any]:
    return dict(read_preset({k.replace("_", "-"): v for k, v in pairs.items()}, place="p").settings)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("c", "4096", {"worker.n_ctx": 4096}),
        ("ctx-size", "4096", {"worker.n_ctx": 4096}),
        ("LLAMA_ARG_CTX_SIZE", "4096", {"worker.n_ctx": 4096}),
        ("ngl", "all", {"worker.n_gpu_layers": -1}),
        ("temp", "0.5", {"sampling.temperature": 0.5}),
        ("mmap", "off", {"worker.use_mmap": False}),
        ("no-mmap", "true", {"worker.use_mmap": False}),
        ("no-mmap", "false", {"worker.use_mmap": True}),
        ("embedding", "1", {"worker.embeddings": True}),
        ("memory-f32", "on", {"worker.cache_type_k": "f32", "worker.cache_type_v": "f32"}),
        ("memory-f32", "off", {}),
        ("flash-attn", "", {"worker.flash_attn": "on"}),
        ("tensor-split", "3,1", {"worker.tensor_split": (3.0, 1.0)}),
        ("hf", "user/model", {"worker.hf_repo": "user/model"}),
        ("workers", "2", {"worker.count": 2}),
        ("host", "::1", {}),
        ("api-key", "secret", {}),
        ("models-max", "9", {}),
        ("version", "1", {}),
        ("cont-batching", "true", {}),
        ("metrics", "true", {}),
        ("jinja", "", {"worker.jinja": True}),
        ("jinja", "sure", {"worker.jinja": True}),
        ("no-mmap", "sure", {"worker.use_mmap": True}),
    ],
)
def test_keys_are_the_options_of_the_command_line(
    key: str, text: str, expected: dict[str, Any]
) -> None:
    assert read_preset({key: text}, place="p").settings == expected


@pytest.mark.parametrize("key", ["agent", "ui-mcp-proxy", "LLAMA_ARG_AGENT", "dump-kv-cache"])
def test_what_has_no_effect_and_is_off_says_nothing(key: str) -> None:
    assert read_preset({key: "false"}, place="p").warnings == ()
    assert len(read_preset({key: "true"}, place="p").warnings) == 1


def test_what_only_presets_have_is_read() -> None:
    keys = {"load-on-startup": "true", "stop-timeout": "3", "dedup-cache-models": "1"}
    preset = read_preset(keys, place="p")
    assert (preset.load_on_startup, preset.stop_timeout_s) == (True, 3.0)
    assert preset.hides_cached is True


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("no-such", "1", r"p: \[m\]: no-such: no such option"),
        ("c", "many", "c: must be a number, but got 'many'"),
        ("stop-timeout", "soon", "stop-timeout: must be a number of seconds"),
        ("load-on-startup", "yeah", "load-on-startup: must be one of"),
        ("cors-origins", "localhost", "cors-origins: belongs to the whole server"),
        ("docker-repo", "gemma3", "docker-repo: is not there"),
    ],
)
def test_mistakes_name_place_and_key(key: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_preset({key: text}, place="p: [m]")


@pytest.mark.parametrize(
    ("key", "text", "line"),
    [
        ("dump-kv-cache", "true", "dump-kv-cache was removed from llama.cpp"),
        (
            *("timeout", "60"),
            "timeout belongs to the whole server: give it as an option, not in a preset",
        ),
        ("mmap", "perhaps", "mmap: 'perhaps' is no boolean, and counts as on"),
        ("no-mmap", "", "no-mmap: '' is no boolean, and counts as off"),
    ],
)
def test_what_has_no_effect_is_warned_about(key: str, text: str, line: str) -> None:
    assert read_preset({key: text}, place="p").warnings == (f"p: {line}",)


def test_the_upper_preset_wins() -> None:
    lower = Preset({"worker.n_ctx": 1, "worker.n_slots": 2}, True, 5.0)
    upper = Preset({"worker.n_ctx": 3}, None, 1.0)
    both = upper.over(lower)
    assert both.settings == {"worker.n_ctx": 3, "worker.n_slots": 2}
    assert (both.load_on_startup, both.stop_timeout_s) == (True, 1.0)


def test_settings_are_shown_as_options_without_secrets() -> None:
    shown = {
        "worker.n_ctx": 512,
        "worker.use_mmap": False,
        "worker.embeddings": True,
        "worker.rope_freq_scale": 0.5,
        "worker.tensor_split": (3.0, 1.0),
        "worker.hf_token": "secret",
        "worker.alias": "m",
    }
    assert as_args(shown) == (
        *("--alias", "m", "--embeddings", "--ctx-size", "512", "--rope-freq-scale", "0.5"),
        *("--tensor-split", "3.0,1.0", "--no-mmap"),
    )
    assert as_section("m", shown) == (
        "[m]\nembeddings = true\nctx-size = 512\nrope-freq-scale = 0.5\n"
        "tensor-split = 3.0,1.0\nmmap = false\n\n"
    )


def test_a_section_that_is_shown_reads_back_to_the_same() -> None:
    given = settings(c="512", temp="0.5", mmap="off", tensor_split="3,1")
    _, *lines = as_section("m", given).split("\n")
    pairs = dict(line.split(" = ") for line in lines if line)
    assert read_preset(pairs, place="p").settings == given
