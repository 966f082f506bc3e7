"""Random requests of which one value is of a wrong type, or out of its range."""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

from tests.parity.random_requests.drawn.values import PARAMETERS

_WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, 7, -1, -7, 1.5, 2**40, "x", "", "7", [], {}, [1], ["a"], [[1]], [None]),
    *({"a": 1}, [{}], [{"a": 1}], {"type": "x"}),
)
_CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ],
    "max_tokens": 1,
}
_TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS["weather"]}}
_CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"a": 3}'}}
_NUMBERS = {
    "temperature": 1, "top_k": 4, "top_p": 1, "min_p": 0, "typical_p": 1, "repeat_last_n": 4,
    "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0,
    "dry_base": 2, "dry_allowed_length": 2, "dry_penalty_last_n": 4, "xtc_probability": 0,
    "xtc_threshold": 0.1, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "seed": 1,
    "dynatemp_range": 0, "dynatemp_exponent": 1, "top_n_sigma": -1, "min_keep": 0, "n_probs": 0,
    "n_keep": 0, "n_discard": 0, "n_indent": 0, "t_max_predict_ms": 0, "id_slot": -1,
    "adaptive_target": -1, "adaptive_decay": 0.9, "n_cache_reuse": 0, "n": 1, "n_predict": 1,
}  # fmt: skip
_REST: dict[str, Any] = {
    "stream": False, "cache_prompt": True, "return_tokens": False, "timings_per_token": False,
    "return_progress": False, "post_sampling_probs": False, "ignore_eos": False,
    "stop": ["zzz"], "logit_bias": [[5, 1]], "samplers": ["top_k"], "grammar": "",
    "response_fields": ["content"], "dry_sequence_breakers": ["a"], "lora": [],
    "grammar_lazy": False, "grammar_triggers": [], "preserved_tokens": [], "json_schema": {},
    "stream_options": {}, "echo": False,
}  # fmt: skip
_BODIES: tuple[tuple[str, Any], ...] = (
    ("/completion", {"prompt": "Hi", **_NUMBERS}),
    ("/completion", {"prompt": "Hi", "n_predict": 1, **_REST}),
    ("/completion", {"prompt": ["Hi", [5, "a", 7], {"prompt_string": "x"}], "n_predict": 1}),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 1, "logprobs": 1, "echo": False,
                         "suffix": None, "best_of": 1, "n": 1, "stop": "z", "stream": False}),
    ("/v1/chat/completions", _CHAT),
    ("/v1/chat/completions", {**_CHAT, "logprobs": True, "top_logprobs": 1, "n": 1, "stop": "z",
                              "response_format": {"type": "json_schema", "json_schema": {
                                  "name": "n", "schema": {"type": "integer"}}}}),
    ("/v1/chat/completions", {
        "messages": [*_CHAT["messages"], {"role": "assistant", "tool_calls": [_CALL]},
                     {"role": "tool", "tool_call_id": "c", "content": "x"}],
        "max_tokens": 1, "tools": [_TOOL], "tool_choice": "auto", "parallel_tool_calls": False,
        "reasoning_format": "none", "chat_template_kwargs": {"a": 1}, "add_generation_prompt": True,
        "continue_final_message": False}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "n_predict": 1,
                 "input_extra": [{"filename": "f", "text": "t"}]}),
    ("/v1/messages", {**_CHAT, "messages": _CHAT["messages"][1:], "system": "x",
                      "stop_sequences": ["z"], "temperature": 0, "top_k": 4, "stream": False}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1,
                      "tools": [{"name": "w", "input_schema": PARAMETERS["weather"]}],
                      "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"}}),
    ("/v1/messages/count_tokens", {"messages": _CHAT["messages"][1:], "system": "x"}),
    ("/v1/responses", {"input": [{"role": "user", "content": [
        {"type": "input_text", "text": "a"}]}], "max_output_tokens": 1, "instructions": "x",
        "tools": [{"type": "function", "name": "w", "parameters": PARAMETERS["weather"]}],
        "tool_choice": "auto", "temperature": 0, "stream": False}),
    ("/tokenize", {"content": "a", "add_special": True, "parse_special": True,
                   "with_pieces": True}),
    ("/detokenize", {"tokens": [5, 6]}),
    ("/apply-template", {"messages": _CHAT["messages"], "tools": [_TOOL],
                         "chat_template_kwargs": {}}),
    ("/v1/chat/completions/input_tokens", {"messages": _CHAT["messages"]}),
    ("/slots/0?action=erase", {"filename": "a"}),
    ("/slots/0?action=save", {"filename": "a"}),
    ("/slots/0?action=restore", {"filename": "a"}),
    ("/lora-adapters", [{"id": 0, "scale": 1}]),
    ("/v1/embeddings", {"input": "a", "encoding_format": "float", "dimensions": None}),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 1}),
)  # fmt: skip


def _is_kept(place: tuple[Any, ...]) -> bool:
    """Return whether an answer would be long without it."""
    return bool(place) and place[0] in ("n_predict", "max_tokens", "max_output_tokens")


def wrong(chance: Random) -> tuple[str, Any]:
    """Draw a request, and put another value in one place of it, or leave it out."""
    path, body = chance.choice(_BODIES)
    places = [place for place in _places(body) if not _is_kept(place)]
    place = chance.choice(places)
    is_left_out = bool(place) and chance.random() < 0.06
    body = _with(body, place, ... if is_left_out else chance.choice(_WRONG))
    if isinstance(body, dict):
        body = {"temperature": 0, "seed": 1, "cache_prompt": False, **body}
    return path, body


def _places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield before
    inner: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        inner = enumerate(value)
    for key, one in inner:
        yield from _places(one, (*before, key))


def _with(value: Any, place: tuple[Any, ...], wrong: Any) -> Any:
    if not place:
        return wrong
    copy = dict(value) if isinstance(value, dict) else list(value)
    if wrong is ... and len(place) == 1:
        del copy[place[0]]
    else:
        copy[place[0]] = _with(copy[place[0]], place[1:], wrong)
    return copy
