"""Every option of llama-server is known here: by its names, its variable, and with its argument."""

from typing import Any

import click

from protocol.config.options.table import OPTIONS, UNUSED
from tests.compat.llama_server import Known, parse, recorded
from worker import cli

OPTIONS_OF_OTHERS = recorded()
REFUSED = {"--docker-repo"}
WITHOUT_EFFECT = {
    *("--cont-batching", "--defrag-thold", "--cache-reuse"),
    *("--checkpoint-min-step", "--cache-idle-slots", "--spec-synth-len", "--spec-synth-rates"),
    *("--video-fps", "--video-timestamp-interval", "--video-ffmpeg-dir", "--spec-draft-p-split"),
    *("--spec-draft-backend-sampling", "--spec-ngram-simple-min-hits", "--spec-ngram-min-hits"),
    *("--tools", "--tools-runtime", "--mcp-servers-config", "--mcp-servers-json"),
    *("--agent", "--ui-mcp-proxy"),
}
"""Taken with a warning, or without one where they ask for what is so anyway."""


def declared() -> dict[str, click.Option]:
    """Return what `serve` declares, by each of its names."""
    found: dict[str, click.Option] = {}
    for param in cli.serve.params:
        assert isinstance(param, click.Option)
        found |= dict.fromkeys((*param.opts, *param.secondary_opts), param)
    return found


DECLARED = declared()
HELP = {"-h", "--help", "--usage"}
"""Tested in `tests/worker/settings/test_arguments.py`."""


def rows_of(known: Known) -> list[Any]:
    """Return the rows of our tables that an option's names belong to."""
    ours = [row for row in OPTIONS if set(known.flags) & {*row.flags, *row.off}]
    return [*ours, *(row for row in UNUSED if set(known.flags) & set(row.flags))]


def test_every_name_is_taken_with_its_argument_and_its_variable() -> None:
    for known in OPTIONS_OF_OTHERS:
        if set(known.flags) == HELP:
            continue
        assert set(known.flags) <= DECLARED.keys()
        for flag in known.flags:
            assert DECLARED[flag].is_flag == (not known.value), flag
        if known.env:
            names = {row.env for row in rows_of(known)}
            assert known.env in names, names


def test_one_option_is_refused_and_each_of_the_unused_has_its_reason() -> None:
    refused = {known.flags for known in OPTIONS_OF_OTHERS for row in _unused(known, True)}
    assert {flag for flags in refused for flag in flags} & REFUSED == REFUSED
    assert len(refused) == len(REFUSED)
    assert all(row.why for row in UNUSED)


def test_options_without_an_effect_are_those_that_are_known_to_have_none() -> None:
    idle = {known.flags for known in OPTIONS_OF_OTHERS for row in _unused(known, False)}
    idle = {flags for flags in idle if not set(flags) & REFUSED}
    assert all(set(flags) & WITHOUT_EFFECT for flags in idle), idle
    assert len(idle) == len(WITHOUT_EFFECT)


def _unused(known: Known, is_refused: bool) -> list[Any]:
    names = set(known.flags)
    return [row for row in UNUSED if names & set(row.flags) and row.is_refused == is_refused]


def test_a_help_text_is_read_as_it_is_recorded() -> None:
    text = """----- common params -----

-h,    --help, --usage                  print usage
--cpu-strict <0|1>                      use -x, or not
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether it is
                                        (env: LLAMA_ARG_KV_OFFLOAD)
--control-vector-layer-range START END
                                        layers
"""
    assert parse(text) == [
        Known(("-h", "--help", "--usage"), "", ""),
        Known(("--cpu-strict",), "<0|1>", ""),
        Known(("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"), "", "LLAMA_ARG_KV_OFFLOAD"),
        Known(("--control-vector-layer-range",), "START END", ""),
    ]
