"""Saved slots, adapters, the system prompt and partial answers in a pool with the whole model."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.served import Served, events, eventually, serving
from tests.models.adapters import write_lora
from tests.models.shallow import shallow_path

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

STORY = "Once upon a time there was a very old house at the end of the street, and in it lived"
DIALOG = {
    "prompt": "A dialog between a user and Bob, who knows all capitals.\n"
    "User: What is the capital of France?\nBob: Paris.\nUser:",
    "anti_prompt": "User:",
    "assistant_name": "Bob:",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pool")
    write_lora(folder / "lora.gguf", n_embd=576, n_layer=30, strength=0.05)
    (folder / "slots").mkdir()
    (folder / "system.json").write_text(json.dumps({"system_prompt": DIALOG}))
    return folder


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[Served]:
    """One worker of two slots with an adapter that is off."""
    with serving(
        *("-a", "only", "-np", "2", "-c", "1024", "--port", "0"),
        *("--slot-save-path", str(folder / "slots")),
        *("--lora", str(folder / "lora.gguf"), "--lora-init-without-apply"),
    ) as served:
        yield served


def complete(pool: Served, prompt: str, **body: Any) -> dict[str, Any]:
    response = pool.complete(prompt, temperature=0, **body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def act(pool: Served, action: str, slot: int, name: str) -> httpx.Response:
    return pool.client.post(f"/slots/{slot}?action={action}", json={"filename": name})


def restart_worker(pool: Served) -> None:
    os.kill(pool.pid_of("only-1"), signal.SIGKILL)
    assert eventually(lambda: pool.client.get("/readyz").status_code == 503)
    assert eventually(lambda: pool.client.get("/readyz").status_code == 200, within_s=60)


def test_a_saved_slot_and_the_set_scales_outlive_the_worker(pool: Served) -> None:
    restart_worker(pool)  # the cells lie at the beginning in both runs: rounding follows them
    pool.client.post("/lora-adapters", json=[{"id": 0, "scale": 1.0}])
    n_tokens = complete(pool, STORY, id_slot=0, n_predict=0)["tokens_evaluated"]
    saved = act(pool, "save", 0, "story").json()
    expected = complete(pool, STORY + " a witch who", id_slot=0)["content"]
    assert (saved["n_saved"], saved["id_slot"], saved["filename"]) == (n_tokens, 0, "story")
    restart_worker(pool)
    assert pool.client.get("/lora-adapters").json()[0]["scale"] == 1.0
    restored = act(pool, "restore", 0, "story").json()
    assert (restored["n_restored"], restored["n_read"]) == (n_tokens, saved["n_written"])
    again = complete(pool, STORY + " a witch who", id_slot=0)
    assert again["timings"]["cache_n"] == n_tokens
    assert again["content"] == expected
    pool.client.post("/lora-adapters", json=[])


def test_bad_files_and_names_are_400s_and_the_worker_lives(pool: Served, folder: Path) -> None:
    complete(pool, STORY, id_slot=0, n_predict=0)
    act(pool, "save", 0, "bad")
    whole = (folder / "slots" / "bad").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"\0" * 5000, whole + b"x"):
        (folder / "slots" / "bad").write_bytes(damaged)
        response = act(pool, "restore", 1, "bad")
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith("Unable to restore slot: ")
    for name in ("../pool.json", "/etc/passwd", "a/../../b", "..", "\u2215etc"):
        response = act(pool, "restore", 1, name)
        assert response.json()["error"]["message"] == "Invalid filename"
    assert complete(pool, "still there")["content"]


def test_an_action_waits_for_a_busy_slot(pool: Served) -> None:
    with pool.stream("A very long story", id_slot=1, n_predict=60, ignore_eos=True) as events:
        next(events)
        erased = pool.client.post("/slots/1?action=erase").json()
        assert [event["stop"] for event in events][-1] is True
    assert erased["n_erased"] > 50


def test_a_system_prompt_stands_before_every_prompt_and_names_its_stop(pool: Served) -> None:
    question = " What is the capital of Spain?\nBob:"
    plain = complete(pool, question, n_predict=0)["tokens_evaluated"]
    answer = complete(pool, question, n_predict=40, system_prompt=DIALOG)
    assert answer["content"].strip().startswith("Madrid")
    assert answer["stopping_word"] == "User:"
    assert list(answer["generation_settings"]["stop"]) == ["User:"]
    assert answer["tokens_evaluated"] > plain + 20
    # The second slot takes what the first has read of it.
    other = complete(pool, " And of Italy?\nBob:", id_slot=1 - answer["id_slot"], n_predict=1)
    assert other["timings"]["cache_n"] >= answer["tokens_evaluated"] - plain
    shown = pool.client.get("/props").json()
    assert (shown["user_name"], shown["assistant_name"]) == ("User:", "Bob:")
    assert complete(pool, question, n_predict=0, system_prompt="")["tokens_evaluated"] == plain


def test_a_system_prompt_from_a_file_is_there_from_the_start(folder: Path) -> None:
    arguments = ("-np", "1", "-c", "512", "--port", "0", "-spf", str(folder / "system.json"))
    with serving("-m", shallow_path(), *arguments) as served:
        assert served.client.get("/props").json()["user_name"] == "User:"
        question = " What is the capital of Spain?\nBob:"
        answer = complete(served, question, n_predict=1)
        assert answer["generation_settings"]["stop"] == ["User:"]
        plain = complete(served, question, n_predict=0, system_prompt="")["tokens_evaluated"]
        assert answer["tokens_evaluated"] > plain + 20


def test_a_partial_answer_is_continued(pool: Served) -> None:
    partial = {"role": "assistant", "content": "The capital of France is"}
    body = {"messages": [{"role": "user", "content": "hi"}, partial], "max_tokens": 6}
    body |= {"temperature": 0, "id_slot": 0, "cache_prompt": False}
    answer = pool.client.post("/v1/chat/completions", json=body).json()
    # llama-server repeats the beginning, unless the request asks for its continuation.
    whole = answer["choices"][0]["message"]["content"]
    assert whole.startswith("The capital of France is Paris")
    with pool.client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as said:
        deltas = [event["choices"][0]["delta"] for event in events(said)]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole
