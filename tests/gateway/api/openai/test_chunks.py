"""OpenAI's answers: chunks, objects, usage, log probabilities."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.openai.chat_reply import ChatReply
from gateway.api.openai.text_reply import TextReply
from gateway.api.reply import ResponseOptions, TaskOutcome
from gateway.api.results import figures
from protocol.wire.facts import Timings
from protocol.wire.messages import Delta, Finish, Progress, Started
from tests.gateway.cards import CARD, PROB, done, params

CHUNK_KEYS = ["choices", "created", "id", "model", "system_fingerprint", "object"]
PLAIN = ResponseOptions(n_top=-1)
USAGE = ResponseOptions(n_top=-1, include_usage=True)


def _chat(options: ResponseOptions = PLAIN, n: int = 1, **fields: Any) -> ChatReply:
    return ChatReply(CARD, [params(n=n, **fields)] * n, options)


def _text(options: ResponseOptions = PLAIN, echoes: Any = (None,), n: int = 1) -> TextReply:
    return TextReply(CARD, [params(n=n)] * len(echoes), options, echoes)


def _frames(data: bytes) -> list[Any]:
    parts = data.split(b"\n\n")
    assert parts.pop() == b""
    return [p if p == b"data: [DONE]" else json.loads(p.removeprefix(b"data: ")) for p in parts]


def _delta(text: str = "a", **fields: Any) -> Delta:
    return Delta(text=text, **fields)


def test_alternatives_that_wait_for_a_text_are_sent_before_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a stop string that was nearly written took the loop 0.4 s."""
    monkeypatch.setattr(figures, "MANY", 10)
    reply = _chat(ResponseOptions(n_top=2), n_probs=2)
    reply.delta(0, _delta())
    chunks = [reply.delta(0, _delta("", probs=(PROB,))) for _ in range(6)]
    assert [bool(chunk) for chunk in chunks] == [False, False, False, True, False, False]
    (chunk,) = _frames(chunks[3])
    assert chunk["choices"][0]["delta"] == {}
    assert len(chunk["choices"][0]["logprobs"]["content"]) == 4


def test_the_first_chunk_has_the_role_and_no_other_has() -> None:
    reply = _chat()
    role, text = _frames(reply.delta(0, _delta('"é\n')))
    assert list(role) == CHUNK_KEYS
    assert role["choices"] == [
        {"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}
    ]
    assert text["choices"][0]["delta"] == {"content": '"é\n'}
    (later,) = _frames(reply.delta(0, _delta("b")))
    assert later["choices"][0]["delta"] == {"content": "b"}
    assert later["id"] == role["id"] and len(role["id"]) == len("chatcmpl-") + 32
    assert role["system_fingerprint"] == "b1-abc"
    assert role["object"] == "chat.completion.chunk"


def test_content_is_never_empty() -> None:
    reply = _chat()
    (role,) = _frames(reply.delta(0, _delta("")))
    assert role["choices"][0]["delta"]["content"] is None
    assert reply.delta(0, _delta("")) == b""


def test_an_answer_without_text_still_has_its_role() -> None:
    role, end = _frames(_chat().done(0, done(finish=Finish.EOS)))
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert end["choices"] == [{"finish_reason": "stop", "index": 0, "delta": {}}]


def test_timings_stand_in_the_last_chunk() -> None:
    reply = _chat()
    reply.delta(0, _delta())
    (end,) = _frames(reply.done(0, done()))
    assert list(end) == [*CHUNK_KEYS, "timings"]
    assert end["choices"][0]["finish_reason"] == "length"
    assert _frames(reply.end()) == [b"data: [DONE]"]


def test_usage_gets_a_chunk_of_its_own_when_asked_for() -> None:
    reply = _chat(USAGE, n=2)
    for index in (1, 0):
        (_, end) = _frames(reply.done(index, done()))
        assert "timings" not in end
    usage, last = _frames(reply.end())
    assert usage["choices"] == []
    assert usage["usage"] == {
        "completion_tokens": 4,
        "prompt_tokens": 4,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert usage["timings"]["predicted_n"] == 4
    assert last == b"data: [DONE]"


def test_timings_per_token_are_in_every_chunk_but_the_role() -> None:
    role, text = _frames(_chat().delta(0, _delta(timings=Timings(predicted_n=1))))
    assert "timings" not in role
    assert text["timings"]["predicted_n"] == 1


def test_progress_is_a_role_chunk_of_its_own() -> None:
    progress = Progress(total=4, cached=0, processed=2, time_ms=1.0)
    (chunk,) = _frames(_chat().progress(0, progress))
    assert chunk["prompt_progress"]["processed"] == 2
    assert "timings" not in chunk
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": None}


def test_log_probabilities_wait_for_the_text_of_their_token() -> None:
    reply = _chat(ResponseOptions(n_top=1), n_probs=1)
    _frames(reply.delta(0, _delta("", probs=(PROB,))))
    (chunk,) = _frames(reply.delta(0, _delta("é", probs=(PROB,))))
    content = chunk["choices"][0]["logprobs"]["content"]
    assert [item["id"] for item in content] == [3, 3]
    assert list(content[0]) == ["id", "token", "bytes", "logprob", "top_logprobs"]
    assert len(content[0]["top_logprobs"]) == 1


def test_log_probabilities_that_never_got_text_come_at_the_end() -> None:
    reply = _chat(ResponseOptions(n_top=0), n_probs=1)
    reply.delta(0, _delta("", probs=(PROB,)))
    (end,) = _frames(reply.done(0, done()))
    assert end["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def _outcome(**fields: Any) -> TaskOutcome:
    values: dict[str, Any] = {"text": "hi", "tokens": (), "probs": (), "done": done()}
    return TaskOutcome(**(values | fields))


def test_the_chat_object_has_llama_servers_shape() -> None:
    result = _chat().result([_outcome()])
    assert result["choices"] == [
        {
            "finish_reason": "length",
            "index": 0,
            "message": {"role": "assistant", "content": "hi"},
        }
    ]
    keys = ["choices", "created", "model", "system_fingerprint", "object", "usage", "id", "timings"]
    assert list(result) == keys
    assert result["object"] == "chat.completion"


def test_logprobs_are_in_the_choice_only_when_asked_for() -> None:
    wanted = _chat(ResponseOptions(n_top=2), n_probs=2).result([_outcome(probs=(PROB,))])
    assert len(wanted["choices"][0]["logprobs"]["content"]) == 1


def test_verbose_adds_the_native_object() -> None:
    verbose = ResponseOptions(n_top=-1, verbose=True)
    said = replace(_outcome(), done=done(grammar="G", generation_prompt="P", raw="<think>"))
    native = _chat(verbose).result([said])["__verbose"]
    settings = native["generation_settings"]
    assert (native["content"], native["tokens_cached"]) == ("<think>", 5)
    assert (settings["grammar"], settings["generation_prompt"]) == ("G", "P")
    end = _frames(_chat(verbose).done(0, done()))[-1]
    assert end["__verbose"]["stop"] is True


def test_text_chunks_have_llama_servers_shape() -> None:
    reply = _text()
    (chunk,) = _frames(reply.delta(0, _delta("a")))
    assert list(chunk) == ["choices", "created", "model", "system_fingerprint", "object", "id"]
    assert chunk["choices"] == [{"text": "a", "index": 0, "logprobs": None, "finish_reason": None}]
    (end,) = _frames(reply.done(0, done()))
    assert end["choices"][0] == {
        "text": "",
        "index": 0,
        "logprobs": None,
        "finish_reason": "length",
    }
    assert end["usage"]["total_tokens"] == 6 and "timings" in end
    assert _frames(reply.end()) == [b"data: [DONE]"]


def test_text_usage_has_its_own_chunk_when_asked_for() -> None:
    reply = _text(USAGE)
    (end,) = _frames(reply.done(0, done()))
    assert "usage" not in end
    assert _frames(reply.end())[0]["choices"] == []


def test_echo_is_said_once_even_without_text() -> None:
    reply = _text(echoes=("x", "y"), n=2)
    assert _frames(reply.delta(0, _delta("a")))[0]["choices"][0]["text"] == "xa"
    assert _frames(reply.delta(0, _delta("b")))[0]["choices"][0]["text"] == "b"
    assert _frames(reply.done(1, done()))[0]["choices"][0]["text"] == "y"


def test_text_log_probabilities_have_both_shapes() -> None:
    reply = _text(ResponseOptions(n_top=1))
    _frames(reply.delta(0, _delta(" a", probs=(PROB,))))
    (chunk,) = _frames(reply.delta(0, _delta(" a", probs=(PROB,))))
    shown = chunk["choices"][0]["logprobs"]
    assert shown["tokens"] == [" a"] and shown["token_logprobs"] == [-0.5]
    assert shown["top_logprobs"] == [{" a": -0.5}]
    assert shown["text_offset"] == [2]
    assert shown["content"][0]["logprob"] == -0.5


def test_text_usage_sums_prompts_once_and_choices_all() -> None:
    reply = _text(echoes=(None,) * 4, n=2)
    usage = reply.result([_outcome()] * 4)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (8, 8)


def test_text_progress_and_timings_ride_along() -> None:
    progress = Progress(total=4, cached=0, processed=2, time_ms=1.0)
    (chunk,) = _frames(_text().progress(0, progress))
    assert chunk["prompt_progress"]["total"] == 4 and chunk["choices"][0]["text"] == ""
    timed = TextReply(CARD, [params(timings_per_token=True)], PLAIN, (None,))
    assert _frames(timed.progress(0, progress))[0]["timings"]["prompt_n"] == 2
    (chunk,) = _frames(_chat(timings_per_token=True).progress(0, progress))
    assert chunk["timings"]["prompt_ms"] == 1.0
    (timed,) = _frames(_text().delta(0, _delta(timings=Timings(predicted_n=1))))
    assert timed["timings"]["predicted_n"] == 1
    assert _text().delta(0, _delta("")) == b""


def test_verbose_text_adds_the_native_object() -> None:
    verbose = ResponseOptions(n_top=1, verbose=True)
    reply = _text(verbose)
    reply.started(0, Started(slot=1, n_prompt=7))
    (chunk,) = _frames(reply.delta(0, _delta("é", tokens=(5,), n_predicted=1)))
    native = {"index": 0, "content": "é", "tokens": [5], "stop": False, "tokens_evaluated": 7}
    assert native.items() <= chunk["__verbose"].items()
    (end,) = _frames(reply.done(0, done()))
    assert end["__verbose"]["id_slot"] == 1
    assert "__verbose" not in _frames(_text().delta(0, _delta()))[0]
    result = _text(verbose).result([_outcome(probs=(PROB,))])
    assert result["__verbose"]["tokens_cached"] == 5
    assert result["choices"][0]["logprobs"]["tokens"] == [" a"]


@given(st.lists(st.text(max_size=20)))
def test_the_text_of_a_stream_is_its_deltas_joined(texts: list[str]) -> None:
    chat, text = _chat(), _text()
    said = ["", ""]
    for one in texts:
        for chunk in _frames(chat.delta(0, _delta(one))):
            said[0] += chunk["choices"][0]["delta"].get("content") or ""
        for chunk in _frames(text.delta(0, _delta(one))):
            said[1] += chunk["choices"][0]["text"]
    assert said == ["".join(texts)] * 2
