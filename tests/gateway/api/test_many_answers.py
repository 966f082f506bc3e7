"""A small body that asks for very many answers is refused before they are planned."""

from typing import Any

import pytest

from gateway.pool.routing.prompt_length import guess_tokens
from protocol.wire.messages import Generate
from tests.gateway.inprocess import Running

N_PROMPTS = 8192
PATHS = ["/completion", "/v1/completions"]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done for each prompt, and for each task."""
    found: list[str] = []

    def noted(name: str, owner: str) -> None:
        module: Any = __import__(owner, fromlist=[name])
        work = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            found.append(name)
            return work(*args, **kwargs)

        monkeypatch.setattr(f"{owner}.{name}", wrapped)

    noted("place_media", "gateway.api.llamacpp.completion")
    noted("place_media", "gateway.api.openai.completions")
    noted("choices_of", "gateway.api.reply")
    return found


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 128])
async def test_more_prompts_than_find_room_are_not_planned(
    gateway: Running, planned: list[str], path: str, n: int
) -> None:
    answer = await gateway.post(path, {"prompt": ["a"] * N_PROMPTS, "n": n})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert f"answers at once, but got {N_PROMPTS}" in answer.json()["error"]["message"]
    assert planned == []


@pytest.mark.parametrize("path", PATHS)
async def test_many_choices_of_many_prompts_are_not_made(
    gateway: Running, planned: list[str], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(gateway.pool.dispatcher.limits, "limit", lambda model: 1_000_000)
    answer = await gateway.post(path, {"prompt": ["a"] * 100, "n": 100})
    assert answer.status_code == 400
    assert "but got 100 with 100 choices each" in answer.json()["error"]["message"]
    assert "choices_of" not in planned


@pytest.mark.parametrize("path", PATHS)
async def test_the_length_of_a_prompt_is_guessed_once_for_all_its_choices(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    guessed: list[Any] = []

    def counted(task: Generate) -> int:
        guessed.append(task.prompt)
        return guess_tokens(task)

    monkeypatch.setattr("gateway.pool.routing.origin.guess_tokens", counted)
    answer = await gateway.post(path, {"prompt": ["one", "two"], "n": 4, "max_tokens": 1})
    assert answer.status_code == 200
    assert guessed == ["one", "two"]
