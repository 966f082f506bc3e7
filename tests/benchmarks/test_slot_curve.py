"""The slot curve's points and its models of random weights."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from click.testing import CliRunner
from gguf.quants import dequantize

from benchmarks import random_model
from benchmarks.compare.servers import Side
from benchmarks.slots import Point, Setting, main, settings, table
from worker.settings.resolve import find_model

Q4_0 = gguf.GGMLQuantizationType.Q4_0


def test_slots_that_workers_cannot_share_evenly_are_no_point() -> None:
    found = settings([1, 2, 4], [1, 2], [128], 16, with_theirs=True)
    assert [(one.slots, one.side, one.workers) for one in found] == [
        (1, Side.OURS, 1),
        (1, Side.THEIRS, 1),
        (2, Side.OURS, 1),
        (2, Side.OURS, 2),
        (2, Side.THEIRS, 1),
        (4, Side.OURS, 1),
        (4, Side.OURS, 2),
        (4, Side.THEIRS, 1),
    ]


def test_every_slot_has_cells_for_its_prompt_and_its_answer() -> None:
    one = Setting(side=Side.OURS, workers=2, slots=6, n_prompt=500, n_output=100)
    assert one.ctx == 6 * 768


def test_the_table_says_who_answered_and_what_a_slot_got() -> None:
    ours = Setting(side=Side.OURS, workers=2, slots=4, n_prompt=128, n_output=16)
    theirs = Setting(side=Side.THEIRS, workers=1, slots=4, n_prompt=128, n_output=16)
    figures = {"ttft_p50_ms": 5, "ttft_p99_ms": 9, "tpot_p50_ms": 2.5, "itl_p99_ms": 3}
    points = [Point(setting=one, tokens_per_s=100, n_failed=0, **figures) for one in (ours, theirs)]
    lines = table(points).splitlines()
    assert lines[2] == "| 128 | 4 | 2 workers | 100.0 | 25.0 | 5, 9 | 2.5 | 3 | 0 |"
    assert "| 4 | llama-server |" in lines[3]


@pytest.mark.parametrize("text", ["", "1,x", "0", "2,-1"])
def test_what_is_no_list_of_counts_is_refused_by_name(text: str) -> None:
    said = CliRunner().invoke(main, ["--slots", text])
    assert said.exit_code == 2 and "--slots" in said.output


def test_layers_fill_the_size_and_there_is_one_at_least() -> None:
    of = random_model.sizes(4096, 49152, 4e9, Q4_0)
    block, block_bytes = gguf.GGML_QUANT_SIZES[Q4_0]
    n_weights = sum(shape[0] * shape[-1] for shape in of.tensors.values() if len(shape) > 1)
    assert n_weights / block * block_bytes == pytest.approx(4e9, rel=0.02)
    assert (of.n_head, of.n_head_kv, of.n_ff) == (32, 8, 14336)
    assert random_model.sizes(4096, 49152, 1.0, Q4_0).n_layers == 1


@pytest.mark.model
@pytest.mark.parametrize(("kind", "window"), [("Q4_0", 0), ("Q8_0", 0), ("Q4_0", 16)])
def test_llama_cpp_loads_a_random_model_and_decodes_with_it(
    tmp_path: Path, kind: str, window: int
) -> None:
    file = tmp_path / "random.gguf"
    of = random_model.sizes(128, random_model.vocabulary_size(Path(find_model(""))), 0, Q4_0)
    of = replace(of, window=window)
    random_model.write(file, of, gguf.GGMLQuantizationType[kind], Path(find_model("")))
    command = [sys.executable, "-m", "benchmarks.engine", "--model", str(file), "--predict", "4"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert said.returncode == 0, said.stderr
    assert "tokens/s over" in said.stdout


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_random_weights_have_the_mean_zero(kind: str) -> None:
    """Else a wide model answers every prompt alike, and comparing its texts proves nothing."""
    quantized = gguf.GGMLQuantizationType[kind]
    weights = dequantize(random_model._weights("blk.0.ffn_up", (64, 4096), quantized), quantized)
    assert abs(weights.mean()) < 0.01 * weights.std()
    assert weights.std() == pytest.approx(4096**-0.5, rel=0.05)
