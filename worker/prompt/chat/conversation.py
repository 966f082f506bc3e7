"""Reads a chat: renders its prompt, builds its grammar, and describes the expected answer."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Chat, content_text
from worker.engine.cache.prefix import common_prefix
from worker.grammar.json_schema.schema import parse_schema
from worker.grammar.parameters import argument_types, whole_part
from worker.grammar.tools import Tool, ToolShape, answer_grammar, call_grammar
from worker.output.chat_parser.nested import ValueTypes
from worker.output.chat_parser.parser import ExpectedParts
from worker.output.chat_parser.tagged import Types
from worker.output.formats.choice import GENERIC, choose_format, markers
from worker.output.formats.reasoning_marks import ReasoningMarks, listed_reasoning_marks
from worker.output.formats.tool_format import NAME
from worker.prompt.chat.generic import explain
from worker.prompt.chat.history import TemplateAbilities, adapt
from worker.prompt.chat.reasoning_detection import find_reasoning_marks
from worker.prompt.chat.result_order import in_call_order
from worker.prompt.chat.template import CHATML, ChatTemplate
from worker.prompt.templates.table import BUILT_IN

_NAMED = "function:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Prompt, grammar and expected answer of a chat."""

    text: str
    expected: ExpectedParts | None = None
    """None if the answer is not parsed."""
    grammar: str = ""
    triggers: tuple[str, ...] = ()
    """Texts at which the grammar begins to apply; if empty, it applies from the start."""
    reasoning_marks: tuple[str, ...] = ()
    """Mark that begins reasoning, then marks that end it, the enforced one first; may be empty."""
    generation_prompt: str = ""
    """The end of the text, which asks for an answer or begins it."""


@dataclass(frozen=True, slots=True)
class _RenderedPrompt:
    text: str
    generation_prompt: str
    """Its end, which asks for an answer."""
    answer_prefix: str
    """The beginning of the answer that the prompt contains."""


class ConversationReader:
    """Renders chats with one model's template."""

    def __init__(self, card: ModelCard) -> None:
        self._parses = card.parses_chats
        source = card.chat_template or CHATML
        self._template = ChatTemplate(BUILT_IN.get(source, source), card)
        self._abilities = TemplateAbilities(self._template)
        self.tools = choose_format(self._template.source)
        found = find_reasoning_marks(self._template)
        self._is_listed = listed_reasoning_marks(self._template.source) is not None
        self._marks = found or ReasoningMarks()
        self._skips_space = found is not None and found.skips_space
        self.reasoning_marks = found if found and found.close else None
        named = [parts for parts in self.tools.openers if parts[1:2] == (NAME,)]
        self._heads = tuple(dict.fromkeys(parts[0] for parts in named))
        """Parts of the openers before the tool's name."""
        self.markers = markers(self.tools, self.reasoning_marks)

    def read(self, chat: Chat) -> ChatPrompt:
        """Render a chat and build its grammar; raises `InvalidRequest`."""
        tools = called_tools(chat)
        try:
            rendered = self._render(chat, tools)
        except InvalidRequest as error:
            raise self._naming(error, chat, tools) from error
        if not self._parses:
            return self._unparsed(chat, rendered)
        is_plain = chat.reasoning_format == "none"
        expected = ExpectedParts(
            tools=self.tools if tools else None,
            names=frozenset(tool["function"]["name"] for tool in tools),
            types=self._types(tools),
            parts=self._parts(tools),
            reasoning_marks=self.reasoning_marks,
            is_json=chat.schema is not None and not (is_plain and self.reasoning_marks),
            dropped=self.tools.dropped,
            skips_space=self._skips_space or (bool(tools) and not self._is_listed),
            is_plain=is_plain,
            answer_prefix=rendered.answer_prefix,
            is_continued=chat.continue_final_message,
            repeats_prefix=chat.repeats_final_message,
        )
        is_needed = bool(tools or self.reasoning_marks or expected.dropped or expected.skips_space)
        is_needed = is_needed or expected.is_json
        grammar, triggers = self._grammar(chat, tools, rendered.answer_prefix)
        marks = self.reasoning_marks
        return ChatPrompt(
            text=rendered.text,
            expected=expected if is_needed or expected.is_continued else None,
            grammar=grammar,
            triggers=triggers,
            reasoning_marks=(marks.open, *marks.last_words) if marks and marks.open else (),
            generation_prompt=rendered.generation_prompt,
        )

    def _naming(self, error: InvalidRequest, chat: Chat, tools: Sequence[Tool]) -> InvalidRequest:
        """Return the error of a template, of the client's variables if it is theirs."""
        if not chat.kwargs or error.param != "messages":
            return error
        try:
            self._render(replace(chat, kwargs=None), tools)
        except InvalidRequest:
            return error
        param = "chat_template_kwargs"
        return InvalidRequest(f"Field '{param}': {error.message}", param=param)

    def _unparsed(self, chat: Chat, rendered: _RenderedPrompt) -> ChatPrompt:
        """Leave the answer unparsed; only its leading white space is dropped."""
        grammar, _ = self._grammar(chat, (), rendered.answer_prefix)
        continued = chat.continue_final_message
        answer_prefix = rendered.answer_prefix if continued else ""
        expected = ExpectedParts(
            skips_space=True,
            is_plain=True,
            answer_prefix=answer_prefix,
            is_continued=continued,
            repeats_prefix=chat.repeats_final_message,
        )
        return ChatPrompt(text=rendered.text, expected=expected, grammar=grammar)

    def _types(self, tools: Sequence[Tool]) -> dict[str, Types]:
        if self.tools.tagged is None:
            return {}
        functions = [tool["function"] for tool in tools]
        return {function["name"]: argument_types(function) for function in functions}

    def _parts(self, tools: Sequence[Tool]) -> dict[str, ValueTypes]:
        functions = [tool["function"] for tool in tools] if self.tools.nested else []
        return {function["name"]: whole_part(function) for function in functions}

    # ---- the prompt ---------------------------------------------------------------------------

    def _render(self, chat: Chat, tools: Sequence[Tool]) -> _RenderedPrompt:
        messages: Sequence[Mapping[str, Any]] = chat.messages
        last: Mapping[str, Any] = {}
        if chat.continue_final_message and messages:
            *messages, last = messages
        if tools and self.tools is GENERIC:
            is_parallel, is_required = self._is_parallel(chat), _is_required(chat)
            messages = explain(messages, tools, is_parallel=is_parallel, is_required=is_required)
        keeps_developer = self.tools.name == "gpt-oss"
        messages = adapt(messages, self._abilities, self.tools, keeps_developer=keeps_developer)
        if self.tools.name == "deepseek-v4":
            messages = in_call_order(messages)
        variables = {"enable_thinking": self.reasoning_marks is not None, **(chat.kwargs or {})}
        if chat.tools and self.tools is not GENERIC:
            tools = [_described(tool) for tool in chat.tools]
            # FireFunction's template needs them as text under a name of its own.
            variables = {"tools": tools, "functions": json.dumps(tools, indent=2)} | variables
        if chat.schema is not None and self.tools.shows_schema:
            variables["response_format"] = parse_schema(chat.schema, param="response_format")
        if not chat.add_generation_prompt and not chat.continue_final_message:
            text = self._template.render(messages, variables, add_generation_prompt=False)
            return _RenderedPrompt(text, "", "")
        text = self._template.render(messages, variables)
        end, asks = self.tools.unasked
        text += asks if end and text.endswith(end) else ""
        without = self._template.render(messages, variables, add_generation_prompt=False)
        prompt = text[common_prefix(text, without) :]
        if chat.continue_final_message:
            answer_prefix = self._continued(last, is_reasoning=_continues_reasoning(chat, last))
            head = self._head(prompt)
            return _RenderedPrompt(
                text[: len(text) - len(prompt)] + head + answer_prefix,
                head + answer_prefix,
                answer_prefix,
            )
        return _RenderedPrompt(text, prompt, self._answer_prefix(prompt))

    def _head(self, prompt: str) -> str:
        """Return the generation prompt without the reasoning that it begins or ends."""
        marks = self.reasoning_marks
        if marks is None or not marks.open:
            return prompt
        head = prompt.partition(marks.open)[0]
        return head.removesuffix(marks.close) if marks.ends_if_empty else head

    def _answer_prefix(self, prompt: str) -> str:
        """Find the answer's beginning in the generation prompt: reasoning, or a call's mark."""
        marks = self.reasoning_marks
        if marks and marks.open and marks.open in prompt:
            return prompt[prompt.index(marks.open) :]
        if marks and marks.ends_if_empty and prompt.endswith(marks.close):
            return marks.close
        heads = (*self._heads, *self.tools.dropped)
        return next((head for head in heads if prompt.endswith(head)), "")

    def _continued(self, last: Mapping[str, Any], *, is_reasoning: bool) -> str:
        """Write the beginning of an answer that is continued."""
        content = content_text(last.get("content"), between="\n\n")
        if self.reasoning_marks is None:
            return "" if is_reasoning else content
        reasoning = str(last.get("reasoning_content") or "")
        begin, finish = self.reasoning_marks.written
        if self.reasoning_marks.ends_if_empty and not reasoning:
            return finish + ("" if is_reasoning else content)
        return begin + reasoning + ("" if is_reasoning else finish + content)

    # ---- the grammar --------------------------------------------------------------------------

    def _grammar(
        self, chat: Chat, tools: Sequence[Tool], answer_prefix: str
    ) -> tuple[str, tuple[str, ...]]:
        shape = self._shape(chat, answer_prefix)
        if chat.schema is not None:
            return _schema_grammar(chat.schema, shape), ()
        if not tools:
            return "", ()
        if shape.is_required or self.tools is GENERIC:
            return call_grammar(tools, shape), ()
        return self._lazy(tools, shape)

    def _shape(self, chat: Chat, answer_prefix: str) -> ToolShape:
        """Return what the grammar must allow around the calls."""
        reasoning_marks = self.reasoning_marks
        is_open = bool(
            reasoning_marks
            and reasoning_marks.open
            and answer_prefix.startswith(reasoning_marks.open)
        )
        is_over = reasoning_marks is not None and reasoning_marks.close in answer_prefix
        if is_over or (chat.continue_final_message and not is_open):
            reasoning_marks = None
        return ToolShape(
            tools=self.tools,
            is_parallel=self._is_parallel(chat),
            opener_prefix=answer_prefix
            if answer_prefix in self._heads and not chat.continue_final_message
            else "",
            reasoning_marks=reasoning_marks,
            reasoning_open=is_open,
            reasoning_over=is_over,
            is_required=_is_required(chat),
            answer=self._marks.answer,
            fence=self._marks.fence,
            newlines=_newlines(self._template.source, sum(self.tools.openers, ())),
        )

    def _lazy(self, tools: Sequence[Tool], shape: ToolShape) -> tuple[str, tuple[str, ...]]:
        """Return a grammar that applies once a call begins; none if nothing marks a call."""
        if self.tools.is_bare:
            return "", ()
        if shape.opener_prefix:
            return call_grammar(tools, shape), ()
        shape = replace(shape, reasoning_marks=None, reasoning_open=False)
        return call_grammar(tools, shape), self._triggers(tools)

    def _triggers(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        """Return the texts that begin a call: the part before the name, or the whole opener."""
        if self.tools.triggers:
            names = [tool["function"]["name"] for tool in tools]
            written = (text.replace(NAME, name) for text in self.tools.triggers for name in names)
            return tuple(dict.fromkeys(written))
        found = [self.tools.openers[0][0].rstrip()]
        for parts in self.tools.loose_openers:
            for tool in tools:
                name = tool["function"]["name"]
                text = "".join(name if part == NAME else part for part in parts)
                found.append(text.rstrip())
        return tuple(found)

    def _is_parallel(self, chat: Chat) -> bool:
        if self.tools.is_single:
            return False
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
def _schema_grammar(text: str, shape: ToolShape) -> str:
    schema = parse_schema(text, param="response_format")
    return answer_grammar(schema, shape)


def _described(tool: Tool) -> dict[str, Any]:
    """Return a tool with all the keys that templates read."""
    function = tool["function"]
    known = {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {},
    }
    return {"type": "function", "function": known}


def _continues_reasoning(chat: Chat, last: Mapping[str, Any]) -> bool:
    if chat.continue_reasoning is not None:
        return chat.continue_reasoning
    return bool(last.get("reasoning_content")) and not last.get("content")


def _newlines(source: str, heads: Sequence[str]) -> frozenset[str]:
    r"""Find the heads after which the template writes a line break, as such or as `\n`."""
    return frozenset(head for head in heads if re.search(rf"{re.escape(head)}(?:\\n|\n)", source))
