"""The real model: an answer that another worker goes on with is the one in one piece.

A CPU computes several rows of 4-bit weights with other kernels than a single one, which round
otherwise (docs/notes/rounding.md). So what must be exact is looked at with `row_by_row`: tokens are
read as they were generated. How far the texts are the same without that: the last test.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from protocol.wire.messages import Chat, Envelope, FrameItem, Generate, Infill, Terminal
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read
from tests.envelopes import payload_of
from tests.worker.continuing import Asker, Told
from tests.worker.served import Answer, Served, is_plausible
from worker.engine.scheduling.policy import DefaultPolicy
from worker.engine.slot import Slot
from worker.engine.task import EngineTask, Submit
from worker.prompt.prompt import PromptReader

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
exact = pytest.mark.usefixtures("row_by_row")

STORY = "Once upon a time there was"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'
)
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 7}

PLAIN: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "greedy, no limit of candidates": {"temperature": 0, "repeat_penalty": 1.2},
    "seeded": SEEDED,
    "no seed": {"temperature": 0.9},
    "one candidate now and then": SEEDED | {"top_p": 0.3},
    "dynamic temperature": SEEDED | {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
    "xtc": SEEDED | {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    "xtc first": SEEDED | {"xtc_probability": 0.5, "samplers": ["xtc", "top_k", "temperature"]},
    "mirostat 1": SEEDED | {"mirostat": 1},
    "mirostat 2": SEEDED | {"mirostat": 2},
    "dry": SEEDED | {"dry_multiplier": 0.8, "dry_penalty_last_n": -1},
    "penalties": SEEDED | {"repeat_penalty": 1.3, "presence_penalty": 0.3, "repeat_last_n": -1},
    "penalties but for newlines": SEEDED | {"repeat_penalty": 1.3, "penalize_nl": False},
    "tail free": SEEDED | {"tfs_z": 0.9},
    "typical": SEEDED | {"typical_p": 0.5},
    "adaptive": SEEDED | {"samplers": ["min_p", "adaptive_p"], "adaptive_target": 0.5},
    "biases": SEEDED | {"logit_bias": [[" a", False], [" the", 2.0]]},
    "no end": SEEDED | {"ignore_eos": True},
    "grammar": SEEDED | {"grammar": r'root ::= ("x" [a-z]+ "-")+ '},
    "grammar and mirostat": SEEDED | {"grammar": r'root ::= ("x" [a-z]+ "-")+', "mirostat": 2},
    "grammar and xtc": SEEDED | {"grammar": r'root ::= ("x" [a-z]+ "-")+', "xtc_probability": 0.5},
    "probabilities": SEEDED | {"n_probs": 3},
    "probabilities after the samplers": SEEDED | {"n_probs": 3, "post_sampling_probs": True},
    "on the device": SEEDED | {"backend_sampling": True},
    "not streamed": SEEDED | {"stream": False},
    "indentation": SEEDED | {"n_indent": 1},
}


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read what was begun in rows of one token, by the kernels that generated it."""
    ready = DefaultPolicy._n_ready

    def n_ready(self: DefaultPolicy, slot: Slot) -> int:
        n_prompt = len(slot.active.task.prompt) - len(slot.tokens)
        return min(ready(self, slot), n_prompt) if n_prompt > 0 else 1

    monkeypatch.setattr(DefaultPolicy, "_n_ready", n_ready)


def asker(served: Served) -> Asker:
    def run(task: EngineTask) -> Sequence[FrameItem]:
        served.engine.submit(Submit(task))
        found: list[FrameItem] = []
        while not any(isinstance(payload_of(one), Terminal) for one in found):
            items = served._emitted.get(timeout=60)
            found += [one for one in items if isinstance(one, Envelope) and one.task == task.key]
        return found

    return Asker(PromptReader(served.backend, cuts_long=False), run)


def generate(prompt: str = STORY, **params: Any) -> Generate:
    asked = {"n_predict": 20, "stream": True, "cache_prompt": False} | params
    return Generate(prompt=prompt, params=read(SamplingParams(), asked))


def require_same(served: Served, message: Generate, places: Sequence[int] = (1, 9)) -> Told:
    """Cut an answer in several places; each of them must come to the same."""
    ask = asker(served)
    whole, deltas = ask.whole(message)
    assert len(whole.tokens) > 4, whole
    for n in (*places, len(deltas) - 2):
        if n > len(deltas):
            continue
        again = ask.cut(message, whole, deltas[:n])
        assert again.answer == whole.answer, n
        assert [one.id for one in again.probs] == [one.id for one in whole.probs]
        assert again.sampler_state == whole.sampler_state or "mirostat" in str(message.params)
    return whole


@exact
@pytest.mark.parametrize("case", PLAIN)
def test_every_sampler_goes_on(single: Served, case: str) -> None:
    require_same(single, generate(**PLAIN[case]))


@exact
def test_a_stop_string_across_the_cut(single: Served) -> None:
    text = asker(single).whole(generate(temperature=0))[0].text
    stop = text[30:42]
    whole = require_same(single, generate(temperature=0, stop=[stop]), range(2, 16, 4))
    assert whole.text == text[: text.index(stop)]


@exact
def test_characters_of_several_tokens_across_the_cut(single: Served) -> None:
    grammar = 'root ::= ("日本語" | "🙂🏳️" | "ñ")+'
    whole = require_same(single, generate(grammar=grammar, **SEEDED), range(1, 20, 4))
    assert "\ufffd" not in whole.text


@exact
def test_a_schema_goes_on(single: Served) -> None:
    chat = Chat(messages=({"role": "user", "content": "Who are you?"},), schema=SCHEMA)
    params = read(
        SamplingParams(), {"n_predict": 40, "stream": True, "cache_prompt": False} | SEEDED
    )
    whole = require_same(single, Generate(chat=chat, params=params))
    assert whole.text.startswith("{")


@exact
@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_call_of_a_tool_goes_on(single: Served, choice: str) -> None:
    content = "What is the weather in Rome? Call get_weather."
    chat = Chat(messages=({"role": "user", "content": content},), tools=(TOOL,), tool_choice=choice)
    asked = {"n_predict": 48, "stream": True, "cache_prompt": False, "temperature": 0.3, "seed": 3}
    params = read(SamplingParams(), asked)
    whole = require_same(single, Generate(chat=chat, params=params), (5, 20))
    assert bool(whole.calls) or choice == "auto"


@exact
def test_thoughts_within_a_budget_go_on(single: Served) -> None:
    marks = {"reasoning_budget_start_tag": "<think>", "reasoning_budget_end_tags": ["</think>"]}
    budget = {"reasoning_budget_tokens": 10, "reasoning_budget_message": " Enough of that now."}
    message = generate("Q: 2+2? <think>", generation_prompt="<think>", **marks, **budget, **SEEDED)
    whole = require_same(single, message, range(3, 20, 5))
    assert " Enough of that now.</think>" in whole.text


@exact
def test_an_infill_goes_on(single: Served) -> None:
    vocabulary = single.backend.vocabulary
    if vocabulary.special.missing_for_infill():
        pytest.skip("the model has no tokens for it")
    params = read(
        SamplingParams(), {"n_predict": 20, "stream": True, "samplers": ["infill"]} | SEEDED
    )
    require_same(single, Generate(infill=Infill(prefix="def f(", suffix=")\n"), params=params))


def test_read_in_a_batch_a_text_parts_from_the_other_in_rounding_only(single: Served) -> None:
    """Whatever comes is what the model alone finds as likely, but for rounding."""
    ask, n_same, n_all = asker(single), 0, 0
    for prompt in (STORY, "The capital of France is", "def fibonacci(n):\n"):
        message = generate(prompt, temperature=0, n_predict=32)
        whole, deltas = ask.whole(message)
        for n in (1, 4, 12, 24):
            again = ask.cut(message, whole, deltas[:n])
            assert again.tokens[:n] == whole.tokens[:n]
            n_all, n_same = n_all + 1, n_same + (again.tokens == whole.tokens)
            is_plausible(single, prompt, Answer(tokens=again.tokens))
    assert n_same > n_all // 3, (n_same, n_all)
