"""The body of /v1/chat/completions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.api.chat_request import DialectFields, plan_chat, read_chat_request, read_log_probs
from gateway.api.fields.chat.conversation import ChatMedia
from gateway.api.fields.chat.reasoning import read_effort
from gateway.api.fields.constraints import with_constraint
from gateway.api.fields.options import read_object
from gateway.api.fields.structured import read_response_format
from gateway.api.openai.chat_reply import ChatReply
from gateway.api.openai.functions import FIELDS, read_functions
from gateway.api.openai.messages import read_messages
from gateway.api.openai.tools import read_tool_use
from gateway.api.reply import RequestPlan
from gateway.api.unsupported import refuse_unsupported
from protocol.wire.facts import ModelCard


def plan(body: Mapping[str, Any], card: ModelCard) -> RequestPlan:
    """Plan a chat completion; raises `InvalidRequest` naming the field."""
    body = with_constraint(body)
    refuse_unsupported(body, besides=FIELDS)
    media = ChatMedia(card)
    functions = read_functions(body)
    own = DialectFields(
        messages=read_messages(body, media),
        media=media,
        tools=functions or read_tool_use(body),
        schema=read_response_format(body, read_object(body, "response_format")),
        effort=read_effort(body),
        n_top=read_log_probs(body),
    )
    request = read_chat_request(body, card, own)
    options = replace(request.options, names_functions=functions is not None)
    reply = ChatReply(card, request.choices, options)
    return plan_chat(request, reply, chat_id=reply.id)
