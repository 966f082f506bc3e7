"""The built-in chat templates, against llama.cpp's own code for each."""

import ctypes
from collections.abc import Sequence

import pytest

from protocol.wire.facts import ModelCard
from worker.prompt.chat.template import ChatTemplate
from worker.prompt.templates.choice import template_text
from worker.prompt.templates.table import BUILT_IN

CONVERSATIONS: Sequence[Sequence[tuple[str, str]]] = [
    [("user", "Hi")],
    [("system", " Be kind. "), ("user", "Hello\n")],
    [("system", "Be kind."), ("user", "Hello"), ("assistant", " Hi there \n"), ("user", "Who?")],
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")],
    [("user", "a"), ("system", "x"), ("user", "<b> {{ c }}"), ("assistant", "")],
    [("user", "é 😀"), ("assistant", "b"), ("tool", "42"), ("user", "c")],
    [],
]


def llama_cpp_says(name: str, turns: Sequence[tuple[str, str]], *, add_answer: bool) -> str:
    """Ask llama.cpp itself."""
    import llama_cpp.llama_cpp as lib

    raw = (lib.llama_chat_message * max(1, len(turns)))()
    for i, (role, content) in enumerate(turns):
        raw[i].role, raw[i].content = role.encode(), content.encode()
    buffer = ctypes.create_string_buffer(65536)
    n = lib.llama_chat_apply_template(name.encode(), raw, len(turns), add_answer, buffer, 65536)
    assert n >= 0
    return buffer.raw[:n].decode()


def ours(name: str, turns: Sequence[tuple[str, str]], *, add_answer: bool) -> str:
    """Render our text of the template."""
    messages = tuple({"role": role, "content": content} for role, content in turns)
    template = ChatTemplate(
        template_text(name), ModelCard(name="m", path="m", n_slots=1, n_ctx=1, n_ctx_total=1)
    )
    return template.render(messages, {}, add_generation_prompt=add_answer)


@pytest.mark.model
@pytest.mark.parametrize("add_answer", [True, False])
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_built_in_template_writes_what_llama_cpp_writes(name: str, add_answer: bool) -> None:
    for turns in CONVERSATIONS:
        expected = llama_cpp_says(name, turns, add_answer=add_answer)
        assert ours(name, turns, add_answer=add_answer) == expected, turns


@pytest.mark.model
def test_every_built_in_template_of_llama_cpp_is_known() -> None:
    import llama_cpp.llama_cpp as lib

    names = (ctypes.c_char_p * 128)()
    n = lib.llama_chat_builtin_templates(names, 128)
    assert {(names[i] or b"").decode() for i in range(n)} == set(BUILT_IN)


def test_a_text_without_marks_says_the_same_each_time(caplog: pytest.LogCaptureFixture) -> None:
    assert template_text("This is no template.") == "This is no template."
    assert ours("This is no template.", [("user", "Hi")], add_answer=True) == "This is no template."
    assert not caplog.text
    assert template_text("lama3") == "lama3"
    assert 'option=--chat-template text=lama3 hint="was llama3 meant?"' in caplog.text


@pytest.mark.parametrize("text", ["", "{{ messages }}", "{% for m in messages %}{% endfor %}"])
def test_a_written_out_template_stays_as_it_is(text: str) -> None:
    assert template_text(text) == text
