"""Loading a model to check a configuration: what ends a worker's start is found."""

import math
from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from protocol.wire.sampling import SamplingParams
from tests.models.bert import write_bert
from tests.models.shallow import shallow_path
from tests.models.t5 import write_t5
from worker.llama.inspect import about_loading

pytestmark = pytest.mark.model


def config(**fields: Any) -> WorkerConfig:
    defaults: dict[str, Any] = {"model": shallow_path(), "n_ctx": 256, "n_threads": 1}
    return WorkerConfig(**(defaults | fields))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sampling": SamplingParams(grammar="root ::= (")}, "grammar"),
        ({"sampling": SamplingParams(logit_bias=((99999999, 1.0),))}, "99999999"),
        ({"mmproj": shallow_path()}, "projector"),
        ({"grp_attn_n": 4, "grp_attn_w": 3}, "grp_attn_n 4"),
    ],
)
def test_what_ends_the_start_of_a_worker_is_found(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        about_loading(config(**fields))


def test_models_that_work_are_loaded_and_computed_with(tmp_path: Path) -> None:
    bert = write_bert(tmp_path / "bert.gguf", pooling="mean")
    t5 = write_t5(tmp_path / "t5.gguf", has_decoder=False)
    for fields in (
        {"grp_attn_n": 4, "grp_attn_w": 128},
        {"embeddings": True},
        {"embeddings": True, "model": str(bert)},
        {"embeddings": True, "model": str(t5), "warmup": False},
    ):
        facts = about_loading(config(**fields))
        assert facts["buffers"]
        assert math.isfinite(facts["seconds"])
