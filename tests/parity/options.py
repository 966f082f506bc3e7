"""Chats of servers that were started with options of their own."""

from typing import Any

from tests.parity.cases import CHAT, Case, chat, completion

SYSTEM: list[dict[str, Any]] = [{"role": "system", "content": " Be short. "}, *CHAT]
PARTIAL: list[dict[str, Any]] = [*CHAT, {"role": "assistant", "content": "The sea"}]
PARTS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

VARIABLES = (
    "{{ [enable_thinking, reasoning_effort or 0, reasoning_strength or 0, preserve_thinking,"
    " clear_thinking, truncate_history_thinking, drop_thinking, a] | string }}{{ '\\n' }}"
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}"
    "{% if not enable_thinking %}{{ '<think></think>' }}{% endif %}{% endif %}"
)
"""A template that shows what it is told."""


def _applied(name: str, **body: Any) -> Case:
    return Case(name=name, path="/apply-template", body={"messages": CHAT} | body, exact=True)


NO_JINJA = (
    chat("no jinja: a chat"),
    chat("no jinja: a system message", messages=SYSTEM),
    chat("no jinja: a partial answer", messages=PARTIAL),
    chat("no jinja: a schema", response_format={"type": "json_object"}),
    chat("no jinja: tools", tools=[_TOOL]),
    chat("no jinja: a tool choice", tool_choice="required"),
    _applied("no jinja: the prompt"),
    _applied("no jinja: the prompt with a system message", messages=SYSTEM),
    _applied("no jinja: the prompt of a partial answer", messages=PARTIAL),
    _applied("no jinja: the prompt of parts", messages=PARTS),
)
TOLD = (
    chat("told: a chat", max_tokens=24),
    chat("told: thinking after all", chat_template_kwargs={"enable_thinking": True}),
    _applied("told: the prompt"),
    _applied("told: the request's variables", chat_template_kwargs={"a": 2, "drop_thinking": 3}),
    _applied(
        "told: the request keeps reasoning", chat_template_kwargs={"preserve_reasoning": True}
    ),
    _applied("told: the request's effort", reasoning_effort="high"),
    _applied("told: no effort", reasoning_effort="none"),
)
CONSTANT = (
    chat("constant: a chat", max_tokens=24),
    _applied("constant: the prompt", messages=SYSTEM),
    completion("small batches"),
)
