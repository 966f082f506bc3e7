"""LoRA adapters and control vectors of the real llama.cpp."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ConfigError, TaskError
from protocol.wire.side_tasks import LoraListed, SetLora
from tests.models.adapters import write_control_vector, write_lora
from tests.models.shallow import N_LAYERS
from tests.worker.conftest import model_path, serving
from tests.worker.served import Served, is_plausible

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

N_EMBD, N_LAYER = 576, 30
"""Of the whole model."""
STORY = "Once upon a time there was"
ON: dict[str, Any] = {"lora": [{"id": 0, "scale": 1.0}]}
OFF: dict[str, Any] = {"lora": [{"id": 0, "scale": 0.0}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    write_lora(folder / "lora.gguf", n_embd=N_EMBD, n_layer=N_LAYERS, strength=0.2)
    write_control_vector(folder / "cvec.gguf", n_embd=N_EMBD, n_layer=N_LAYERS, strength=0.5)
    return folder


@pytest.fixture(scope="module")
def tuned(files: Path) -> Iterator[Served]:
    """Two slots with an adapter that is off unless a task asks for it."""
    lora = (str(files / "lora.gguf"),)
    with serving(2, lora=lora, lora_init_without_apply=True) as served:
        yield served


N_SAID = 20
SAID_BY_LLAMA_SERVER = {
    0.0: " a small town nestled between two mountains. The town was nestled between two mountains,"
    " and the town was",
    0.5: " a small town nestled between two great mountains. The town was called Oakwood,"
    " and it was nestled",
    1.0: " a small town nestled between two great mountains. The town was called Willow Creek,"
    " and it was nestled",
}
"""Greedily, with the same adapter and `-fa off -np 1`, by the llama-server of the same commit."""

STEERED_BY_LLAMA_SERVER = (
    " a woman named Elara Grey, a brilliant and cunning rogue with a troubled past. She was a"
)
"""Beside the adapter, the control vector with scale 0.7 on layers 5 to 20."""


@pytest.mark.cpu
def test_texts_are_llama_servers_own(tmp_path: Path) -> None:
    write_lora(tmp_path / "lora.gguf", n_embd=N_EMBD, n_layer=N_LAYER, strength=0.05)
    write_control_vector(tmp_path / "cvec.gguf", n_embd=N_EMBD, n_layer=N_LAYER, strength=0.5)
    lora = (str(tmp_path / "lora.gguf"),)
    whole: dict[str, Any] = {"model": model_path(), "warmup": False, "lora": lora}
    with serving(1, **whole) as served:
        for scale, text in SAID_BY_LLAMA_SERVER.items():
            asked = {
                "lora": [{"id": 0, "scale": scale}],
                "cache_prompt": False,
                "n_predict": N_SAID,
            }
            assert served.ask(STORY, **asked).text == text, scale
    steering: dict[str, Any] = {
        "control_vector": (f"{tmp_path / 'cvec.gguf'}:0.7",),
        "control_vector_layers": (5, 20),
    }
    with serving(1, **whole, **steering) as served:
        assert served.ask(STORY, n_predict=N_SAID).text == STEERED_BY_LLAMA_SERVER


def set_lora(served: Served, *scales: tuple[int, float]) -> LoraListed:
    answer = served.do(SetLora(scales=scales))
    assert isinstance(answer, LoraListed)
    return answer


def test_scale_zero_is_the_model_itself_and_scale_one_is_not(files: Path) -> None:
    # Rounding depends on where the cells lie: one slot each, so that they lie alike.
    with serving(1) as served:
        base = served.ask(STORY, n_predict=16, cache_prompt=False).text
    with serving(1, lora=(str(files / "lora.gguf"),)) as served:
        assert served.ask(STORY, **OFF, n_predict=16, cache_prompt=False).text == base
        assert served.ask(STORY, **ON, n_predict=16, cache_prompt=False).text != base


def test_the_standing_scale_holds_for_tasks_that_ask_for_nothing(files: Path) -> None:
    # Rounding depends on where the cells lie: one slot, so that they lie alike.
    lora = (str(files / "lora.gguf"),)
    with serving(1, lora=lora, lora_init_without_apply=True) as one:
        on, off = (one.ask(STORY, **kind, cache_prompt=False).text for kind in (ON, OFF))
        (listed,) = set_lora(one, (0, 1.0)).adapters
        assert (listed.id, listed.scale, listed.task_name) == (0, 1.0, "noise")
        assert one.ask(STORY, cache_prompt=False).text == on
        assert set_lora(one).adapters[0].scale == 0.0
        assert one.ask(STORY, cache_prompt=False).text == off != on


def test_no_scale_of_a_client_spoils_the_cache_that_all_share(tuned: Served) -> None:
    """1e38 left in it what is no number, and every later answer was empty."""
    long = "The story of the seven seas. " * 20
    tuned.ask(STORY, lora=[{"id": 0, "scale": 1e38}], cache_prompt=False)
    assert tuned.ask(long, cache_prompt=False).text


def test_tasks_with_and_without_an_adapter_run_at_once_and_keep_apart(tuned: Served) -> None:
    """Judge each token by its own kind alone: rounding moves a log probability by little.

    At scale 80 the adapter makes another model of it, whose choices the model finds absurd.
    """
    strong = {"lora": [{"id": 0, "scale": 80.0}]}
    kinds = (strong, OFF, strong, OFF)
    asked = [(STORY, kind | {"n_predict": 4, "cache_prompt": False}) for kind in kinds]
    tokens = tuned.tokenize(STORY)
    for kind, answer in zip(kinds, tuned.ask_each(asked), strict=True):
        is_plausible(tuned, STORY, answer, **kind, cache_prompt=False)
    first, other = (judged(tuned, tokens, kind) for kind in (strong, OFF))
    assert max(first, key=first.__getitem__) not in other


def judged(served: Served, tokens: list[int], kind: dict[str, Any]) -> dict[int, float]:
    """Return the likeliest next tokens under a kind of its own."""
    alone = served.ask(tokens, **kind, n_predict=1, n_probs=20, cache_prompt=False)
    return {token: p for token, _, p in alone.probs[0].top}


def test_what_was_read_with_another_scale_is_read_again(tuned: Served) -> None:
    prompt = "Nobody else in this file reads the following words"
    n_tokens = len(tuned.tokenize(prompt))
    tuned.ask(prompt, **ON, id_slot=0, n_predict=0)
    assert tuned.ask(prompt, **ON, id_slot=0, n_predict=0).done.n_cached == n_tokens - 1
    assert tuned.ask(prompt, **OFF, id_slot=0, n_predict=0).done.n_cached == 0


def test_an_adapter_that_is_not_loaded_is_refused(tuned: Served) -> None:
    with pytest.raises(TaskError, match="no adapter has the id 1"):
        set_lora(tuned, (1, 1.0))


def test_a_file_that_is_no_adapter_stops_the_start(files: Path, tmp_path: Path) -> None:
    small = write_lora(tmp_path / "small.gguf", n_embd=64, n_layer=2, strength=1)
    for path in (str(files / "cvec.gguf"), str(small), str(tmp_path / "nowhere.gguf")):
        with pytest.raises(ConfigError, match="cannot load LoRA adapter"), serving(1, lora=(path,)):
            pass


def test_a_control_vector_steers_by_scale_and_layers(files: Path) -> None:
    path, last = str(files / "cvec.gguf"), (N_LAYERS - 1, N_LAYERS)
    texts = {}
    variants: dict[str, dict[str, Any]] = {
        "none": {},
        "zero": {"control_vector": (f"{path}:0",)},
        "one": {"control_vector": (path,)},
        "twice a half": {"control_vector": (f"{path}:0.5", f"{path}:0.5")},
        "last layer": {"control_vector": (path,), "control_vector_layers": last},
    }
    for name, settings in variants.items():
        with serving(1, **settings) as served:
            texts[name] = served.ask(STORY, n_predict=12).text
    assert texts["none"] == texts["zero"] != texts["one"]
    assert texts["twice a half"] == texts["one"] != texts["last layer"]


def test_a_file_that_is_no_control_vector_stops_the_start(files: Path, tmp_path: Path) -> None:
    whole = (files / "cvec.gguf").read_bytes()
    small = write_control_vector(tmp_path / "small.gguf", n_embd=64, n_layer=3, strength=1)
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "junk.gguf").write_bytes(b"GGUF" + bytes(range(200)))
    for path in (files / "lora.gguf", small, tmp_path / "cut.gguf", tmp_path / "junk.gguf"):
        steered = serving(1, control_vector=(str(path),))
        with pytest.raises(ConfigError, match=path.name), steered:
            pass


def test_a_task_whose_logits_are_not_numbers_spoils_no_other(tmp_path: Path) -> None:
    """NaN in free cells of the shared cache, or in those of others, made all logits NaN."""
    write_lora(tmp_path / "huge.gguf", n_embd=N_EMBD, n_layer=N_LAYERS, strength=1e30)
    lora, plain = (str(tmp_path / "huge.gguf"),), {"cache_prompt": False, "n_predict": 20}
    with serving(3, lora=lora, lora_init_without_apply=True, n_batch=64) as served:
        before = served.ask(STORY, **plain).text
        long = STORY * 20, plain | ON  # others decode between the pieces of its prompt
        answers = served.ask_each([(STORY, plain), long, (STORY, plain)])
        assert "not numbers" in answers[1].failed.message
        assert [answers[0].text, answers[2].text] == [before] * 2
        assert served.ask(STORY, **plain).text == before
