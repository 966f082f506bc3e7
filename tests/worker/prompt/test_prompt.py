"""From messages and texts to tokens, with every limit that stands before the engine."""

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError, ErrorCode, InvalidRequest, TaskError
from protocol.wire.messages import (
    Chat,
    Detokenize,
    Detokenized,
    Envelope,
    Generate,
    TaskKey,
    Tokenize,
    Tokenized,
)
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import Render, Rendered
from tests.worker.chat_templates import OPENER
from tests.worker.prompt.read_task import read_task
from worker.engine.fake.backend import BOS, FakeBackend
from worker.engine.fake.sampler import FakeSampler
from worker.prompt.chat.template import CHATML
from worker.prompt.prompt import Prepared, PromptReader
from worker.prompt.prompt_log import PromptLog

USER = {"role": "user", "content": "hi"}


def reader(*, cuts_long: bool = False, n_ctx: int = 64, template: str = "") -> PromptReader:
    """A reader over the fake vocabulary: tokens are bytes."""
    config = WorkerConfig(backend="fake", n_ctx=n_ctx, chat_template=template)
    return PromptReader(FakeBackend(config), cuts_long=cuts_long)


def generate(**fields: Any) -> Generate:
    """A minimal generation."""
    return Generate(params=SamplingParams(), **fields)


def chat(*messages: tuple[str, str], **kwargs: Any) -> Generate:
    """A conversation."""
    contents = tuple({"role": role, "content": content} for role, content in messages)
    return generate(chat=Chat(messages=contents, kwargs=kwargs or None))


def text(tokens: list[int]) -> str:
    """Read bytes back; BOS is written as ^."""
    return "".join("^" if token == BOS else chr(token) for token in tokens)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", "^ab"),
        (("ab", 99, "d"), "^abcd"),
        ((97, "b"), "ab"),
        ((97, 98), "ab"),
        ("", "^"),
    ],
)
def test_only_a_leading_text_gets_bos(prompt: Any, expected: str) -> None:
    assert text(read_task(reader(), generate(prompt=prompt)).prompt) == expected


def test_the_namespace_of_the_cache_is_handed_on() -> None:
    assert read_task(reader(), generate(prompt="ab", salt="tenant")).salt == "tenant"
    assert read_task(reader(), generate(prompt="ab")).salt == ""


@pytest.mark.parametrize("token", [-1, 258, 10**9])
def test_tokens_outside_the_vocabulary_are_refused(token: int) -> None:
    with pytest.raises(InvalidRequest, match="Prompt contains invalid tokens"):
        read_task(reader(), generate(prompt=(token,)))
    with pytest.raises(InvalidRequest):
        reader().prepare(Envelope(TaskKey(1), Detokenize(tokens=(token,))))


def test_a_prompt_that_fills_the_context_is_refused_with_counts() -> None:
    with pytest.raises(TaskError) as caught:
        read_task(reader(n_ctx=32), generate(prompt="x" * 31))
    assert caught.value.code is ErrorCode.CONTEXT_EXCEEDED
    assert caught.value.detail == {"n_prompt_tokens": 32, "n_ctx": 32}
    assert str(caught.value) == (
        "request (32 tokens) exceeds the available context size (32 tokens), try increasing it"
    )


def test_a_hopelessly_long_text_is_refused_before_it_is_tokenized() -> None:
    with pytest.raises(TaskError) as caught:
        read_task(reader(n_ctx=32), generate(prompt="x" * 100_000))
    assert caught.value.code is ErrorCode.CONTEXT_EXCEEDED


def test_what_is_only_tokenized_need_not_fit_into_the_context() -> None:
    small = reader(n_ctx=32)
    tokenized = small.prepare(Envelope(TaskKey(1), Tokenize(content=("x" * 90_000, 97))))
    assert isinstance(tokenized, Tokenized)
    tokens = tuple(array("i", tokenized.tokens))
    assert len(tokens) == 90_001
    text = small.prepare(Envelope(TaskKey(2), Detokenize(tokens=tokens)))
    assert text == Detokenized(content="x" * 90_000 + "a")
    asked = Render(chat=Chat(messages=({"role": "user", "content": "x" * 90_000},)))
    rendered = small.prepare(Envelope(TaskKey(3), asked))
    assert isinstance(rendered, Rendered)
    assert rendered.n_tokens > 90_000


def test_with_context_shift_the_middle_of_a_long_prompt_is_cut() -> None:
    prompt = tuple(i % 250 for i in range(100))
    message = Generate(params=SamplingParams(n_keep=4), prompt=prompt)
    task = read_task(reader(n_ctx=32, cuts_long=True), message)
    assert task.truncated
    assert len(task.prompt) < 32
    assert task.prompt[:4] == [0, 1, 2, 3]
    assert task.prompt[-1] == 99


def test_default_template_is_chatml() -> None:
    task = read_task(reader(n_ctx=256), chat(("system", "be kind"), ("user", "hi")))
    assert text(task.prompt) == (
        "^<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_name_and_template_text_are_both_taken() -> None:
    named = read_task(reader(n_ctx=256, template="chatml"), chat(("user", "hi")))
    written = read_task(reader(n_ctx=256, template=CHATML), chat(("user", "hi")))
    assert named.prompt == written.prompt


def test_a_bos_written_by_the_template_is_not_doubled() -> None:
    task = read_task(
        reader(template="{{ bos_token }}{{ messages[0].content }}"), chat(("user", "hi"))
    )
    assert text(task.prompt) == "^hi"


def test_template_variables_come_from_the_request() -> None:
    template = "{{ mood }}/{{ add_generation_prompt }}/{{ messages|tojson }}"
    task = read_task(reader(n_ctx=512, template=template), chat(("user", "<é>"), mood="bright"))
    assert text(task.prompt).startswith('^bright/True/[{"role": "user", "content": "<Ã')


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ 1 // 0 }}",
        "{{ messages.__class__.__mro__ }}",
        "{% for i in range(999999999) %}{% endfor %}",
    ],
)
def test_what_the_template_refuses_is_the_clients_mistake(template: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot render"):
        read_task(reader(template=template), chat(("user", "hi")))


def test_what_no_message_has_is_undefined_as_in_llama_cpp() -> None:
    template = "{% if messages[0].role == 'system' %}s{% endif %}{{ messages[5].content }}a"
    assert text(read_task(reader(template=template), chat()).prompt) == "^a"


def test_a_broken_template_is_found_when_the_model_is_loaded() -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        reader(template="{% if %}")


def test_tokenize_adds_bos_only_when_asked() -> None:
    plain = reader().tokenize(Tokenize(content="ab"))
    special = reader().tokenize(Tokenize(content="ab", add_special=True))
    assert (text(plain), text(special)) == ("ab", "^ab")


def test_tokenize_takes_texts_and_tokens_mixed() -> None:
    assert text(reader().tokenize(Tokenize(content=("a", 98, "c")))) == "abc"


def test_the_prompt_is_echoed_with_special_tokens() -> None:
    assert read_task(reader(), generate(prompt="ab")).text == "<bos>ab"


def test_an_echo_of_a_prompt_that_would_be_cut_is_refused_with_its_length() -> None:
    one = PromptReader(FakeBackend(WorkerConfig(backend="fake", n_ctx=64)), cuts_long=True)
    with pytest.raises(TaskError) as refused:
        read_task(one, generate(prompt="a" * 150, echo=True))
    assert refused.value.detail == {"n_prompt_tokens": 151, "n_ctx": 64}


def test_the_servers_limit_holds_where_the_request_has_none() -> None:
    config = WorkerConfig(backend="fake", n_ctx=64, sampling=SamplingParams(n_predict=7))
    one = PromptReader(FakeBackend(config), cuts_long=False)
    for asked, due in ((-1, 7), (3, 3), (9, 9)):
        message = Generate(prompt="a", params=SamplingParams(n_predict=asked))
        assert read_task(one, message).params.n_predict == due


def test_prompts_are_logged_only_if_that_was_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="worker.prompt.prompt_log")
    backend = FakeBackend(WorkerConfig(backend="fake", n_ctx=64))
    read_task(PromptReader(backend, cuts_long=False), generate(prompt="secret"))
    assert "secret" not in caplog.text
    log = PromptLog(logs=True)
    read_task(PromptReader(backend, cuts_long=False, prompt_log=log), generate(prompt="secret"))
    assert "n_prompt=7 text=<bos>secret" in caplog.text


def test_each_prompt_gets_a_file_in_the_folder_for_them(tmp_path: Path) -> None:
    backend = FakeBackend(WorkerConfig(backend="fake", n_ctx=64))
    log = PromptLog(folder=str(tmp_path / "new"))
    read_task(PromptReader(backend, cuts_long=False, prompt_log=log), generate(prompt="secret"))
    (path,) = (tmp_path / "new").iterdir()
    assert path.read_text() == "<bos>secret"


def test_a_folder_that_cannot_be_written_costs_the_files_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    PromptLog(folder=str(tmp_path / "file")).note(1, 1, "text")
    assert "prompt not written" in caplog.text


# ---- reasoning --------------------------------------------------------------------------------


def budgeted(budget: int = -1, **fields: Any) -> Generate:
    """A generation whose reasoning has a budget."""
    return Generate(params=SamplingParams(reasoning_budget_tokens=budget), **fields)


def test_the_template_says_what_marks_reasoning() -> None:
    params = read_task(reader(template=OPENER), budgeted(5, chat=Chat(messages=(USER,)))).params
    assert params.reasoning_budget_start_tag == "<think>"
    assert params.reasoning_budget_end_tags == ("</think>",)
    assert params.generation_prompt == "[assistant]<think>\n"


def test_the_servers_budget_of_reasoning_stands_for_requests_without_one() -> None:
    sampling = SamplingParams(reasoning_budget_tokens=7)
    config = WorkerConfig(backend="fake", n_ctx=256, sampling=sampling, chat_template=OPENER)
    ours = PromptReader(FakeBackend(config), cuts_long=False)
    asked = Chat(messages=(USER,))
    budgets = [
        read_task(ours, budgeted(n, chat=asked)).params.reasoning_budget_tokens for n in (-1, 3)
    ]
    assert budgets == [7, 3]
    assert read_task(ours, budgeted(-1, prompt="a")).params.reasoning_budget_tokens == 7


def test_a_budget_for_reasoning_without_marks_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_task(reader(), budgeted(5, prompt="a"))
    assert caught.value.param == "reasoning_budget_tokens"
    with pytest.raises(InvalidRequest) as caught:
        params = SamplingParams(reasoning_control=True)
        read_task(reader(), Generate(prompt="a", params=params))
    assert caught.value.param == "reasoning_control"


def test_a_chat_without_reasoning_takes_any_budget() -> None:
    params = read_task(reader(), budgeted(5, chat=Chat(messages=(USER,)))).params
    assert not params.reasoning_budget_start_tag


# ---- what cannot fit is not read ---------------------------------------------------------------


class Counting(FakeBackend):
    """Counts the characters that it has to tokenize."""

    n_chars = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Count, and tokenize."""
        self.n_chars += len(text)
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


LONGEST = 5
"""Of the fake's tokens: `<bos>`."""


@pytest.mark.parametrize(
    "content",
    [
        "x" * (64 * LONGEST + 1),
        ("x",) * 65,
        tuple(range(65)),
        ("x" * 32 * LONGEST, "y" * 32 * LONGEST, 1),
    ],
)
def test_what_the_whole_context_could_not_hold_is_refused_before_it_is_tokenized(
    content: str | tuple[int | str, ...],
) -> None:
    backend = Counting(WorkerConfig(backend="fake", n_ctx=64))
    one = PromptReader(backend, cuts_long=False)
    backend.n_chars = 0
    with pytest.raises(TaskError) as caught:
        one.prepare(Envelope(TaskKey(1), generate(prompt=content)))
    assert caught.value.code is ErrorCode.CONTEXT_EXCEEDED
    assert backend.n_chars == 0


def test_a_template_that_calls_itself_without_end_is_a_refusal() -> None:
    template = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}"
    with pytest.raises(InvalidRequest, match="recursion"):
        read_task(reader(template=template), chat(("user", "hi")))


@pytest.mark.parametrize("tells", [True, False])
def test_a_chat_tells_its_prompt_where_it_is_asked_for(tells: bool) -> None:
    message = replace(chat(("user", "hi")), returns_prompt=tells)
    told = read_task(reader(n_ctx=256), message).text
    assert told.startswith("<bos><|im_start|>user\nhi") if tells else told == ""


def test_texts_among_the_parameters_reach_the_engine_as_tokens() -> None:
    params = SamplingParams(penalty_prompt="ab", logit_bias=(("cd", 1.0), (7, -1.0)))
    found = read_task(reader(), Generate(prompt="x", params=params)).params
    assert found.penalty_prompt == (97, 98)
    assert found.logit_bias == ((99, 1.0), (100, 1.0), (7, -1.0))
    plain = SamplingParams(logit_bias=((7, -1.0),))
    assert read_task(reader(), Generate(prompt="x", params=plain)).params == plain


def test_texts_of_more_tokens_than_may_be_biased_one_by_one_are_refused() -> None:
    texts = tuple((f"{i:0100}", 1.0) for i in range(100))
    with pytest.raises(InvalidRequest, match="more than 8192 tokens") as refusal:
        read_task(reader(), Generate(prompt="x", params=SamplingParams(logit_bias=texts)))
    assert refusal.value.param == "logit_bias"


def test_the_sampler_is_built_where_prompts_are_read() -> None:
    prepared = reader().prepare(Envelope(TaskKey(1), generate(prompt="ab")))
    assert isinstance(prepared, Prepared)
    assert isinstance(prepared.task.sampler, FakeSampler)
    prepared.task.sampler.close()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "a", "schema": '{"type": "null"}'}, "json_schema"),
        ({"chat": Chat(messages=(USER,), schema='{"type": "null"}')}, "response_format"),
        ({"chat": Chat(messages=(USER,), tools=({"function": {"name": "f"}},))}, "tools"),
    ],
)
def test_a_grammar_that_is_refused_is_named_by_what_it_was_made_from(
    fields: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise InvalidRequest("Failed to parse grammar: too long", param="grammar")

    for params, named in ((SamplingParams(), param), (SamplingParams(grammar="x"), "grammar")):
        message = Generate(params=params, **fields)
        prepared = reader(n_ctx=4096).prepare(Envelope(TaskKey(1, 1), message))
        assert isinstance(prepared, Prepared)
        assert prepared.task.grammar_field == named
        with monkeypatch.context() as patch, pytest.raises(TaskError, match="too long") as caught:
            patch.setattr(FakeBackend, "open_sampler", refused)
            reader(n_ctx=4096).prepare(Envelope(TaskKey(1, 1), message))
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert caught.value.param == named
