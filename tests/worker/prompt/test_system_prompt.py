"""The common beginning of all plain prompts, over the fake vocabulary: tokens are bytes."""

from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.messages import Chat, Generate, Infill
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import SetSystemPrompt
from tests.worker.prompt.read_task import read_task
from worker.engine.fake.backend import BOS, FAKE_MARKER, FakeBackend
from worker.prompt.prompt import PromptReader

SYSTEM = "Be kind."


def reader(prompt: str = SYSTEM, anti_prompt: str = "", **config: Any) -> PromptReader:
    backend = FakeBackend(WorkerConfig(backend="fake", n_ctx=64, **config))
    reader = PromptReader(backend, cuts_long=False)
    reader.set_system_prompt(SetSystemPrompt(prompt=prompt, anti_prompt=anti_prompt))
    return reader


def generate(**fields: Any) -> Generate:
    values: dict[str, Any] = {"params": SamplingParams()} | fields
    return Generate(**values)


def text(tokens: list[int]) -> str:
    return "".join("^" if token == BOS else "#" if token < 0 else chr(token) for token in tokens)


def test_it_stands_before_a_prompt_with_the_only_bos() -> None:
    task = read_task(reader(), generate(prompt="Hi"))
    assert text(task.prompt) == "^Be kind.Hi"
    assert task.text == "Hi"


def test_without_one_the_prompt_has_its_own_bos() -> None:
    assert text(read_task(reader(""), generate(prompt="Hi")).prompt) == "^Hi"


def test_tokens_that_a_client_wrote_are_left_alone() -> None:
    task = read_task(reader(), generate(prompt=(BOS, ord("H"), "i")))
    assert text(task.prompt) == "^Be kind.^Hi"


def test_an_image_keeps_its_place() -> None:
    task = read_task(reader(mmproj="x"), generate(prompt=f"See {FAKE_MARKER}", media=(b"image",)))
    assert text(task.prompt) == "^Be kind.See ####"
    assert list(task.media) == [len("^Be kind.See ")]


def test_chats_and_infill_have_none() -> None:
    chat = Chat(messages=({"role": "user", "content": "Hi"},))
    assert SYSTEM not in text(read_task(reader(n_slots=1), generate(chat=chat)).prompt)
    gap = generate(infill=Infill(prefix="a", suffix="b"))
    assert SYSTEM not in text(read_task(reader(), gap).prompt)


def test_the_anti_prompt_stops_and_the_prefix_is_kept() -> None:
    params = SamplingParams(stop=("x",), n_keep=2)
    task = read_task(reader(anti_prompt="You:"), generate(prompt="Hi", params=params))
    assert task.params.stop == ("x", "You:")
    assert task.params.n_keep == 2 + len("^Be kind.")


def test_one_that_fills_the_context_changes_nothing() -> None:
    one = reader()
    with pytest.raises(TaskError) as caught:
        one.set_system_prompt(SetSystemPrompt(prompt="x" * 64))
    assert caught.value.code is ErrorCode.CONTEXT_EXCEEDED
    assert text(read_task(one, generate(prompt="Hi")).prompt) == "^Be kind.Hi"


def test_a_prompt_must_fit_behind_it() -> None:
    with pytest.raises(TaskError, match="exceeds the available context"):
        read_task(reader(), generate(prompt="x" * 55))


def test_an_adapter_that_is_not_loaded_is_refused_before_the_engine() -> None:
    asked = generate(prompt="Hi", params=SamplingParams(lora=((1, 0.5),)))
    with pytest.raises(InvalidRequest, match="no adapter has the id 1"):
        read_task(reader(lora=("one.gguf",)), asked)
