"""Block hashes: prompts with equal beginnings share them, others do not."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.pool.tasks.block_hashes import Prefix, fingerprint
from protocol.wire.cached import BLOCK_BYTES
from protocol.wire.messages import Chat, Generate, Infill
from protocol.wire.sampling import SamplingParams

TEXT = "".join(f"word {i} " for i in range(300))


def task(**fields: Any) -> Generate:
    return Generate(params=fields.pop("params", SamplingParams()), **fields)


def chat(*contents: str, **fields: Any) -> Generate:
    messages = tuple({"role": "user", "content": content} for content in contents)
    return task(chat=Chat(messages=messages, **fields))


def blocks(one: Generate, model: str = "m") -> list[bytes]:
    """The hashes of a prompt's blocks."""
    chain = fingerprint(one, model).chain
    return [chain[i : i + BLOCK_BYTES] for i in range(0, len(chain), BLOCK_BYTES)]


def shared(one: Generate, other: Generate) -> int:
    """Count the blocks that both begin with; all later ones must differ."""
    a, b = blocks(one), blocks(other)
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert not set(a[n:]) & set(b[n:])
    return n


def test_a_prompt_is_cut_into_blocks_of_256_characters() -> None:
    found = fingerprint(task(prompt=TEXT[:1000]), "m")
    assert found.n_blocks == 3
    assert found.size == pytest.approx(1000 / 256)


@pytest.mark.parametrize("at", [0, 255, 256, 700, 1023])
def test_prompts_share_the_blocks_before_they_differ(at: int) -> None:
    other = TEXT[:at] + "#" + TEXT[at + 1 :]
    assert shared(task(prompt=TEXT), task(prompt=other)) == at // 256


def test_a_conversation_that_goes_on_begins_with_what_it_was() -> None:
    first, more = chat(TEXT), chat(TEXT, TEXT)
    assert shared(first, more) == fingerprint(first, "m").n_blocks > 8


def test_tools_stand_before_the_messages() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": TEXT}}
    assert shared(chat(TEXT, tools=(tool,)), chat(TEXT)) == 0
    assert shared(chat("a", tools=(tool,)), chat("b", tools=(tool,))) > 8


def test_calls_and_reasoning_are_part_of_a_message() -> None:
    def with_call(arguments: str) -> Generate:
        call = {"function": {"name": "f", "arguments": arguments}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        return task(chat=Chat(messages=(message,)))

    assert shared(with_call(TEXT), with_call(TEXT[:500] + "!" + TEXT[501:])) == 2


def test_tokens_are_cut_into_blocks_of_64() -> None:
    tokens = tuple(range(200))
    found = fingerprint(task(prompt=tokens), "m")
    assert found.n_blocks == 3
    assert shared(task(prompt=tokens), task(prompt=(*tokens[:130], 7, *tokens[131:]))) == 2


def test_tokens_and_texts_mixed_are_read_as_text() -> None:
    assert shared(task(prompt=(1, TEXT)), task(prompt=(1, TEXT, 5))) == len(TEXT) // 256


def test_an_infill_begins_with_its_files_and_what_stands_before_the_gap() -> None:
    def gap(suffix: str) -> Generate:
        infill = Infill(prefix=TEXT, suffix=suffix, extra=(("a.py", TEXT),))
        return task(prompt="", infill=infill)

    assert shared(gap("x" * 600), gap("y" * 600)) >= 2 * len(TEXT) // 256 - 1


@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("other", {}),
        ("m", {"salt": "another tenant"}),
        ("m", {"params": SamplingParams(lora=((0, 0.5),))}),
    ],
)
def test_another_model_namespace_or_adapter_shares_nothing(
    model: str, change: dict[str, Any]
) -> None:
    one = task(prompt=TEXT)
    assert not set(blocks(one)) & set(blocks(replace(one, **change), model))


def test_images_tell_prompts_of_equal_text_apart() -> None:
    one = task(prompt=TEXT[:250], media=(b"a" * 300,))
    assert shared(one, replace(one, media=(b"b" * 300,))) == 0


def test_who_wants_no_cache_has_no_fingerprint() -> None:
    assert fingerprint(task(prompt=TEXT, params=SamplingParams(cache_prompt=False)), "m") == (
        Prefix()
    )


def test_a_huge_prompt_is_looked_at_up_to_a_bound() -> None:
    found = fingerprint(task(prompt="x" * 3_000_000), "m")
    assert found.n_blocks == 4096
    assert found.size > 11_000


def test_the_hashes_are_the_same_in_every_process() -> None:
    """Gateways of one release speak of the same blocks; changing them raises `WIRE_VERSION`."""
    text, tokens = task(prompt="x" * 256, salt="s"), task(prompt=tuple(range(64)))
    assert fingerprint(text, "m").chain.hex() == "4617f63afd45a7e1"
    assert fingerprint(tokens, "m").chain.hex() == "62841846816ad68e"


def test_text_is_measured_in_bytes_and_anything_a_client_sends_has_a_hash() -> None:
    assert fingerprint(task(prompt="ä" * 256), "m").n_blocks == 2
    for odd in ("\ud800" * 300, (2**70, -5) * 200, (1,) * 100 + ("\udfff",) * 100):
        assert fingerprint(task(prompt=odd), "m").n_blocks >= 2
    assert shared(task(prompt=(2**70,) * 200), task(prompt=(2**70,) * 190 + (5,) * 10)) == 2
