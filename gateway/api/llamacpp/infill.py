"""The body of /infill; the answer is that of /completion."""

from collections.abc import Mapping
from typing import Any

from gateway.api.fields.media import refuse_media
from gateway.api.fields.options import read_ping_interval
from gateway.api.fields.params import read_params
from gateway.api.fields.prompt import Prompt, check_infill, mixed
from gateway.api.fields.structured import read_json_schema
from gateway.api.reply import RequestPlan, fan_out
from gateway.api.results.completion_reply import CompletionReply
from gateway.api.unsupported import refuse_unsupported
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Generate, Infill

_BAD_EXTRA = '"input_extra" must be an array of {"filename": string, "text": string}'
_NAMELESS = "tmp"


def plan(body: Mapping[str, Any], card: ModelCard) -> RequestPlan:
    """Plan an infill; raises `TaskError` for what cannot be done."""
    check_infill(card)
    prompt = body.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise InvalidRequest('"prompt" must be a string', param="prompt")
    gap = Infill(
        prefix=_text(body, "input_prefix", card),
        suffix=_text(body, "input_suffix", card),
        extra=_extra(body.get("input_extra")),
    )
    refuse_unsupported(body)
    params = read_params(body, card)
    schema = read_json_schema(body)
    refuse_media(body)
    task = Generate(prompt=prompt or "", infill=gap, params=params, schema=schema)
    tasks, each = fan_out([task], params)
    return RequestPlan(
        tasks=tasks,
        reply=CompletionReply(card, each),
        stream=params.stream,
        ping_interval_s=read_ping_interval(body),
    )


def _text(body: Mapping[str, Any], key: str, card: ModelCard) -> Prompt:
    """Read a text, or texts and tokens mixed."""
    value = body.get(key)
    if value is None:
        raise InvalidRequest(f'"{key}" is required', param=key)
    if isinstance(value, list):
        return mixed(value, card.n_vocab, key=key)
    if not isinstance(value, str):
        raise InvalidRequest(f'"{key}" must be a string or an array', param=key)
    return value


def _extra(value: Any) -> tuple[tuple[str, str], ...]:
    """Read the other files as pairs of name and text."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(chunk, dict) for chunk in value):
        raise InvalidRequest(_BAD_EXTRA, param="input_extra")
    return tuple(_chunk(chunk) for chunk in value)


def _chunk(chunk: Mapping[str, Any]) -> tuple[str, str]:
    text, name = chunk.get("text"), chunk.get("filename")
    if not isinstance(text, str):
        message = 'extra_context chunk must contain a "text" field with a string value'
        raise InvalidRequest(message, param="input_extra")
    if name is not None and not isinstance(name, str):
        message = 'extra_context chunk\'s "filename" field must be a string'
        raise InvalidRequest(message, param="input_extra")
    return _NAMELESS if name is None else name, text
