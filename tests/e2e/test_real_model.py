"""The whole pool on the first layers of the default model, asked by the official OpenAI client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import httpx
import pytest
from pydantic import BaseModel, Field

from tests import vendors
from tests.e2e.served import Served, eventually

if TYPE_CHECKING:
    from openai import OpenAI

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

STORY_TOKENS = 100
QUESTION = [{"role": "user", "content": "Write one sentence about the sea."}]


@pytest.fixture
def pool(real_pool: Served) -> Served:
    return real_pool


@pytest.fixture
def openai(pool: Served) -> Iterator[OpenAI]:
    """The official client."""
    with vendors.openai.OpenAI(base_url=f"{pool.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: OpenAI, **options: Any) -> Any:
    """Ask the question, greedily."""
    body: dict[str, Any] = {"model": "any", "messages": QUESTION, "temperature": 0} | options
    return client.chat.completions.create(**body)


def test_chat_whole_and_streamed_are_the_same_text(openai: OpenAI) -> None:
    # id_slot keeps both in one place: rounding depends on where the cells lie.
    place = {"id_slot": 0, "cache_prompt": False}
    whole = ask(openai, max_tokens=24, extra_body=place)
    assert whole.choices[0].finish_reason in {"stop", "length"}
    assert whole.usage.prompt_tokens > 20
    stream = ask(
        openai, max_tokens=24, extra_body=place, stream=True, stream_options={"include_usage": True}
    )
    assert isinstance(stream, vendors.openai.Stream)
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len(text.split()) > 5
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_embeddings_tell_near_from_far_while_a_chat_goes_on(openai: OpenAI) -> None:
    texts = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose."]
    stream = ask(openai, max_tokens=48, stream=True)
    next(stream)
    # The client asks for base64 by itself.
    together = openai.embeddings.create(model="any", input=texts)
    alone = openai.embeddings.create(model="any", input=texts[0], encoding_format="float")
    assert len(list(stream)) > 1
    cat, kitten, rates = (one.embedding for one in together.data)

    def likeness(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True))

    assert likeness(cat, alone.data[0].embedding) > 0.999
    assert likeness(cat, kitten) > likeness(cat, rates)
    assert alone.usage.prompt_tokens < together.usage.prompt_tokens


async def test_async_client_runs_many_chats_at_once(pool: Served) -> None:
    async with vendors.openai.AsyncOpenAI(
        base_url=f"{pool.url}/v1", api_key="none", max_retries=0
    ) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="any",
                    messages=[{"role": "user", "content": f"Count from {i}."}],
                    max_tokens=12,
                )
                for i in range(12)
            )
        )
    assert all(answer.choices[0].message.content for answer in answers)


def test_both_workers_get_work_and_metrics_count_it(pool: Served, openai: OpenAI) -> None:
    before = predicted(pool)
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: ask(openai, max_tokens=8), range(8)))
    total = sum(answer.usage.completion_tokens for answer in done)
    assert predicted(pool) == before + total
    # A request that went on at another worker names both: worker="a, b".
    told = [re.findall(r'worker="?([^"=]+)"? ', line) for line in pool.lines if " ttft_s=" in line]
    assert len({name for (names,) in told for name in names.split(", ")}) == 2


def predicted(pool: Served) -> int:
    """Read llama-server's counter of generated tokens."""
    text = pool.client.get("/metrics").text
    lines = [
        line for line in text.splitlines() if line.startswith("llamacpp:tokens_predicted_total ")
    ]
    return int(float(lines[0].split()[1]))


def test_completions_choices_seed_and_log_probabilities(openai: OpenAI) -> None:
    body: dict[str, Any] = {
        "model": "any",
        "prompt": "Once upon a time",
        "max_tokens": 6,
        "n": 2,
        "seed": 3,
        "logprobs": 2,
        "extra_body": {"cache_prompt": False},
    }
    answer = openai.completions.create(**body)
    assert len(answer.choices) == 2
    assert answer.choices[0].text != answer.choices[1].text
    log_probs = answer.choices[0].logprobs
    assert log_probs is not None
    assert "".join(log_probs.tokens or []) == answer.choices[0].text
    assert all(len(top) == 2 for top in log_probs.top_logprobs or [])


def test_chat_log_probabilities_name_each_token(openai: OpenAI) -> None:
    answer = ask(openai, max_tokens=4, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert "".join(item.token for item in content) == answer.choices[0].message.content
    assert all(len(item.top_logprobs) == 3 for item in content)


class Pet(BaseModel):
    """What a structured answer is parsed into."""

    name: str = Field(min_length=1, max_length=16)
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)
    toys: list[str] = Field(max_length=2)


def test_the_official_client_parses_a_structured_answer(openai: OpenAI) -> None:
    question: Any = [{"role": "user", "content": "Invent a pet."}]
    answer = openai.chat.completions.parse(
        model="any", messages=question, response_format=Pet, temperature=0, max_tokens=200
    )
    pet = answer.choices[0].message.parsed
    assert isinstance(pet, Pet)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/completion", {"prompt": "x", "json_schema": {"type": "array", "items": [{"const": 7}]}}),
        ("/chat/completions", {"response_format": {"type": "json_object", "schema": {"const": 7}}}),
    ],
)
def test_a_schema_rules_native_and_chat_answers(
    pool: Served, path: str, fields: dict[str, Any]
) -> None:
    body = {"messages": QUESTION, "n_predict": 64, "temperature": 0, **fields}
    answer = pool.client.post(path, json=body).json()
    text = answer["content"] if "content" in answer else answer["choices"][0]["message"]["content"]
    assert json.loads(text) in ([7], 7)


def test_a_bad_schema_is_a_400_before_the_stream_begins(pool: Served) -> None:
    form = {"type": "json_object", "schema": {"type": 123}}
    body = {"messages": QUESTION, "response_format": form, "stream": True}
    response = pool.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert "type must be a string or an array of strings" in error["message"]


def test_apply_template_and_the_count_of_its_tokens_agree(pool: Served) -> None:
    body = {"messages": QUESTION}
    prompt = pool.client.post("/apply-template", json=body).json()["prompt"]
    assert prompt.endswith(f"{QUESTION[0]['content']}<|im_end|>\n<|im_start|>assistant\n")
    tokens = pool.client.post("/tokenize", json={"content": prompt, "add_special": True}).json()
    counted = pool.client.post("/v1/chat/completions/input_tokens", json=body).json()
    assert counted == {"input_tokens": len(tokens["tokens"]), "object": "response.input_tokens"}
    shorter = pool.client.post("/apply-template", json={**body, "add_generation_prompt": False})
    assert prompt == shorter.json()["prompt"] + "<|im_start|>assistant\n"


def test_a_stop_string_ends_the_text(openai: OpenAI) -> None:
    whole = ask(openai, max_tokens=24).choices[0].message.content
    word = whole.split()[3]
    answer = ask(openai, max_tokens=24, stop=[word]).choices[0]
    assert answer.finish_reason == "stop"
    assert word not in answer.message.content


def test_text_to_tokens_and_back(pool: Served) -> None:
    text = "naïve café 😀 日本語"
    tokens = pool.client.post("/tokenize", json={"content": text}).json()["tokens"]
    back = pool.client.post("/detokenize", json={"tokens": tokens}).json()["content"]
    assert back == text
    pieces = pool.client.post("/tokenize", json={"content": "é😀", "with_pieces": True}).json()
    assert any(isinstance(one["piece"], list) for one in pieces["tokens"])


def test_a_prompt_beyond_the_context_is_refused_with_counts(pool: Served) -> None:
    response = pool.client.post("/completion", json={"prompt": "word " * 3000})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 1024


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"grammar": "root ::= ("}, "Failed to parse grammar"),
        ({"prompt": [10**6]}, "Prompt contains invalid tokens"),
        ({"logit_bias": 1}, "logit_bias"),
        ({"top_k": "x"}, "Field 'top_k': type must be number, but is string"),
        ({"samplers": 5}, "samplers"),
    ],
)
def test_a_clients_mistake_is_a_400_that_names_it(
    pool: Served, body: dict[str, Any], words: str
) -> None:
    response = pool.client.post("/completion", json={"prompt": "x", "n_predict": 2} | body)
    assert response.status_code == 400, response.text
    assert words in response.json()["error"]["message"]


def test_props_describe_the_model(pool: Served) -> None:
    props = pool.client.get("/props").json()
    assert props["total_slots"] == 8
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert "<|im_start|>" in props["chat_template"]


def test_kill_9_of_one_of_two_workers_cuts_no_stream(pool: Served) -> None:
    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(stream_story, pool, i) for i in range(8)]
        assert eventually(lambda: not pool.is_idle() and busy(pool) == 8)
        name = next(one for one in workers_of(pool) if one.endswith("-1"))
        os.kill(pool.pid_of(name), signal.SIGKILL)
        ends = [future.result() for future in running]
    assert ends == ["whole"] * 8
    pool.wait_for_count("task moved .* cause=lost", 1)
    pool.wait_for(f"process ready child={name}")
    assert eventually(pool.is_idle)
    assert pool.complete("again").status_code == 200


def workers_of(pool: Served) -> set[str]:
    """Names of the workers that became ready."""
    return {
        line.split("child=")[1].split()[0] for line in pool.lines if "process ready child=" in line
    }


def busy(pool: Served) -> int:
    """Count the slots at work."""
    return sum(slot["is_processing"] for slot in pool.client.get("/slots").json())


def stream_story(pool: Served, number: int) -> str:
    """Stream a text that cannot end early; say how it ended."""
    try:
        with pool.stream(
            f"Story {number}: once", n_predict=STORY_TOKENS, ignore_eos=True
        ) as stream:
            last: dict[str, Any] = {}
            for event in stream:
                last = event
    except httpx.RemoteProtocolError:
        return "broken"
    return "whole" if last.get("tokens_predicted") == STORY_TOKENS else "broken"
