"""Chats of a server without Jinja: llama.cpp's built-in form of the template, and nothing else.

As llama-server's --no-jinja: without tools, reasoning and continued answers; the answer is the raw
text of the model.
"""

from collections.abc import Mapping
from typing import Any

from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Chat, content_text
from worker.grammar.json_schema.schema import text_to_gbnf
from worker.prompt.chat.conversation import ChatPrompt
from worker.prompt.chat.template import CHATML, ChatTemplate
from worker.prompt.templates.detect import built_in


class BuiltInReader:
    """Writes chats by a built-in template."""

    markers: tuple[str, ...] = ()

    def __init__(self, card: ModelCard) -> None:
        text = built_in(card.chat_template or CHATML)
        self._template = ChatTemplate(text, card) if text else None

    def read(self, chat: Chat) -> ChatPrompt:
        """Render a chat; raises `InvalidRequest` for what needs Jinja."""
        if chat.tools:
            raise InvalidRequest("tools param requires --jinja flag", param="tools")
        if chat.tool_choice not in ("auto", "none"):
            raise InvalidRequest("tool_choice param requires --jinja flag", param="tool_choice")
        if self._template is None:
            message = "this custom template is not supported, try using --jinja"
            raise InvalidRequest(message, param="messages")
        messages = [_plain(message) for message in chat.messages]
        adds = chat.add_generation_prompt and not chat.continue_final_message
        text = self._template.render(messages, {}, add_generation_prompt=adds)
        grammar = text_to_gbnf(chat.schema, param="response_format") if chat.schema else ""
        return ChatPrompt(text=text, grammar=grammar)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the fields that a built-in template reads; a missing content is empty."""
    return {"role": str(message.get("role") or ""), "content": content_text(message.get("content"))}
