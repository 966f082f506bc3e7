"""Reads a chat: writes its prompt, and says what its answer must be and may hold."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from protocol.errors import InvalidRequest
from protocol.facts import ModelCard
from protocol.messages import Chat
from worker.chat.generic import explain
from worker.chat.history import Habits, adapt
from worker.chat.template import CHATML, ChatTemplate
from worker.grammar.parameters import argument_types
from worker.grammar.tools import Shape, Tool, answer_grammar, call_grammar
from worker.output.chat.formats import GENERIC, choose_format, choose_thoughts, markers
from worker.output.chat.parser import Expected
from worker.output.chat.tagged import Types
from worker.output.chat.tool_format import NAME
from worker.templates.table import BUILT_IN

_NAMED = "function:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """What a chat comes to."""

    text: str
    expected: Expected | None = None
    """None: the answer is what the model writes."""
    grammar: str = ""
    triggers: tuple[str, ...] = ()
    """The grammar begins where one of these comes; without any it holds from the start."""


@dataclass(frozen=True, slots=True)
class _Rendered:
    text: str
    begun: str
    """What of the answer stands in the prompt already."""


class ConversationReader:
    """Knows one model's chat template."""

    def __init__(self, card: ModelCard) -> None:
        source = card.chat_template or CHATML
        self._template = ChatTemplate(BUILT_IN.get(source, source), card)
        self._habits = Habits(self._template)
        self.tools = choose_format(self._template.source)
        self.thoughts = choose_thoughts(self._template.source)
        self.markers = markers(self.tools, self.thoughts)

    def read(self, chat: Chat) -> ChatPrompt:
        """Render a chat and build its grammar; raises `InvalidRequest`."""
        tools = called_tools(chat)
        rendered = self._render(chat, tools)
        is_plain = chat.reasoning_format == "none"
        expected = Expected(
            tools=self.tools if tools else None,
            names=frozenset(tool["function"]["name"] for tool in tools),
            types=self._types(tools),
            thoughts=None if is_plain else self.thoughts,
            begun=rendered.begun,
            is_continued=chat.continue_final_message,
        )
        is_needed = bool(tools or expected.thoughts or expected.is_continued)
        grammar, triggers = self._grammar(chat, tools, rendered.begun)
        return ChatPrompt(
            text=rendered.text,
            expected=expected if is_needed else None,
            grammar=grammar,
            triggers=triggers,
        )

    def _types(self, tools: Sequence[Tool]) -> dict[str, Types]:
        if self.tools.tagged is None:
            return {}
        functions = [tool["function"] for tool in tools]
        return {function["name"]: argument_types(function) for function in functions}

    # ---- the prompt ---------------------------------------------------------------------------

    def _render(self, chat: Chat, tools: Sequence[Tool]) -> _Rendered:
        messages: Sequence[Mapping[str, Any]] = chat.messages
        last: Mapping[str, Any] = {}
        if chat.continue_final_message and messages:
            *messages, last = messages
        if tools and self.tools is GENERIC:
            is_parallel, is_required = self._is_parallel(chat), _is_required(chat)
            messages = explain(messages, tools, is_parallel=is_parallel, is_required=is_required)
        keeps_developer = self.tools.name == "gpt-oss"
        messages = adapt(messages, self._habits, keeps_developer=keeps_developer)
        variables = dict(chat.kwargs or {})
        if chat.tools and self.tools is not GENERIC:
            tools = [_described(tool) for tool in chat.tools]
            # FireFunction's template wants its own name for them, and text.
            variables = {"tools": tools, "functions": json.dumps(tools, indent=2)} | variables
        if not chat.add_generation_prompt and not chat.continue_final_message:
            text = self._template.render(messages, variables, add_generation_prompt=False)
            return _Rendered(text, "")
        text = self._template.render(messages, variables)
        without = self._template.render(messages, variables, add_generation_prompt=False)
        prompt = text[_common(text, without) :]
        if chat.continue_final_message:
            begun = self._continued(last, is_thought=_continues_thought(chat, last))
            head = prompt.partition(self.thoughts.open)[0] if self.thoughts else prompt
            return _Rendered(text[: len(text) - len(prompt)] + head + begun, begun)
        return _Rendered(text, self._begun(prompt))

    def _begun(self, prompt: str) -> str:
        """Find what the generation prompt begins: a thought, or a call."""
        if self.thoughts and prompt.rstrip().endswith(self.thoughts.open):
            return self.thoughts.open
        heads = {parts[0] for parts in self.tools.openers if parts[1:2] == (NAME,)}
        return next((head for head in heads if prompt.endswith(head)), "")

    def _continued(self, last: Mapping[str, Any], *, is_thought: bool) -> str:
        """Write the beginning of the answer that is to be gone on with."""
        content = str(last.get("content") or "")
        if self.thoughts is None:
            return "" if is_thought else content
        reasoning = str(last.get("reasoning_content") or "")
        source = self._template.source
        tags = self.thoughts
        # Thoughts that are left out are written in their own way.
        source = re.sub(f"{re.escape(tags.open)}(?:\\\\n)*{re.escape(tags.close)}", "", source)
        text = _written(source, self.thoughts.open, before=False) + reasoning
        if is_thought:
            return text
        return text + _written(source, self.thoughts.close, before=True) + content

    # ---- the grammar --------------------------------------------------------------------------

    def _grammar(
        self, chat: Chat, tools: Sequence[Tool], begun: str
    ) -> tuple[str, tuple[str, ...]]:
        shape = self._shape(chat, begun)
        if chat.schema is not None and (shape.thoughts or chat.tools):
            # Without either the schema alone is the grammar, as of a plain prompt.
            return _schema_grammar(chat.schema, shape), ()
        if not tools:
            return "", ()
        if shape.is_required or self.tools is GENERIC:
            return call_grammar(tools, shape), ()
        return self._lazy(tools, shape)

    def _shape(self, chat: Chat, begun: str) -> Shape:
        """Say what the grammar has to allow around the calls."""
        thoughts = self.thoughts
        is_begun = thoughts is not None and begun.startswith(thoughts.open)
        is_over = thoughts is not None and thoughts.close in begun
        if is_over or (chat.continue_final_message and not is_begun):
            thoughts = None
        return Shape(
            tools=self.tools,
            is_parallel=self._is_parallel(chat),
            begun="" if is_begun or chat.continue_final_message else begun,
            thoughts=thoughts,
            thoughts_begun=is_begun,
            is_required=_is_required(chat),
            newlines=_newlines(self._template.source, [parts[0] for parts in self.tools.openers]),
        )

    def _lazy(self, tools: Sequence[Tool], shape: Shape) -> tuple[str, tuple[str, ...]]:
        """Only once a call begins, its grammar holds; where nothing marks a call, none does."""
        if self.tools.is_bare or shape.begun:
            return "", ()
        shape = replace(shape, thoughts=None, thoughts_begun=False)
        return call_grammar(tools, shape), self._triggers(tools)

    def _triggers(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        """Write the beginnings of a call: of an opener without a head of its own all of it."""
        found = [self.tools.openers[0][0].rstrip()]
        for parts in self.tools.loose_openers:
            for tool in tools:
                name = tool["function"]["name"]
                text = "".join(name if part == NAME else part for part in parts)
                found.append(text.rstrip())
        return tuple(found)

    def _is_parallel(self, chat: Chat) -> bool:
        if chat.parallel_tool_calls is None:
            return not self.tools.is_bare
        return chat.parallel_tool_calls


def _is_required(chat: Chat) -> bool:
    return chat.tool_choice not in ("auto", "none")


def called_tools(chat: Chat) -> tuple[Tool, ...]:
    """Return the tools that the answer may call: none, all, or the named one."""
    if chat.tool_choice == "none" or chat.schema is not None:
        return ()
    if not chat.tool_choice.startswith(_NAMED):
        return chat.tools
    name = chat.tool_choice.removeprefix(_NAMED)
    named = tuple(tool for tool in chat.tools if tool["function"]["name"] == name)
    if not named:
        raise InvalidRequest(f"tool_choice names an unknown tool: {name}", param="tool_choice")
    return named


@functools.lru_cache(maxsize=32)
def _schema_grammar(text: str, shape: Shape) -> str:
    return answer_grammar(_schema(text), shape, param="response_format")


def _schema(text: str) -> Any:
    schema = json.loads(text)
    return schema if schema != {} else {"type": "object"}


def _described(tool: Tool) -> dict[str, Any]:
    """Return a tool with all the keys that templates read."""
    function = tool["function"]
    known = {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": known}


def _continues_thought(chat: Chat, last: Mapping[str, Any]) -> bool:
    if chat.continue_thought is not None:
        return chat.continue_thought
    return bool(last.get("reasoning_content")) and not last.get("content")


def _common(text: str, other: str) -> int:
    """Length of the common beginning of two texts."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


def _written(source: str, marker: str, *, before: bool) -> str:
    r"""Return a marker with the line breaks that the template writes around it.

    They stand in the template as `\n`; where it names the marker more than once, it writes the one
    with the most of them.
    """
    head = r"(?:\\n|\n)*" if before else ""
    found = re.findall(f"{head}{re.escape(marker)}(?:\\\\n|\n)*", source)
    return max(found, key=len, default=marker).replace("\\n", "\n")


def _newlines(source: str, heads: Sequence[str]) -> frozenset[str]:
    return frozenset(head for head in heads if _written(source, head, before=False) != head)
