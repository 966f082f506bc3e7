"""Every endpoint over real HTTP, with a fake worker behind."""

import json
from typing import Any

import pytest

from gateway.api.fields.endpoints import BODIES, ENDPOINTS
from gateway.api.fields.tables import fields_of
from tests.gateway.inprocess import Running

CHAT = {"messages": [{"role": "user", "content": "one two three"}]}


async def test_chat_answers_in_one_piece(gateway: Running) -> None:
    response = await gateway.post("/v1/chat/completions", CHAT)
    body = response.json()
    assert response.status_code == 200
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "one two three"}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 3
    assert body["system_fingerprint"] == "b1-fake"


async def test_chat_streams_role_text_reason_and_done(gateway: Running) -> None:
    lines = await gateway.events("/chat/completions", CHAT)
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert "".join(delta["content"] for delta in deltas[1:-1]) == "one two three"
    assert all(delta["content"] for delta in deltas[1:-1])
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert "timings" in chunks[-1]
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.parametrize("path", ["/completion", "/completions"])
async def test_native_completion_streams_without_done(gateway: Running, path: str) -> None:
    lines = await gateway.events(path, {"prompt": "a b"})
    chunks = [json.loads(line) for line in lines]
    assert "".join(chunk["content"] for chunk in chunks) == "a b"
    assert [chunk["stop"] for chunk in chunks[-2:]] == [False, True]
    assert chunks[0]["id_slot"] == chunks[0]["slot_id"] == 0
    assert chunks[-1]["stop_type"] == "eos" and chunks[-1]["stopped_eos"]


async def test_several_prompts_and_choices_fan_out(gateway: Running) -> None:
    response = await gateway.post("/completion", {"prompt": ["a", "b"], "n": 2, "seed": 7})
    objects = response.json()
    assert [(one["index"], one["content"]) for one in objects] == [
        (0, "a"),
        (1, "a"),
        (2, "b"),
        (3, "b"),
    ]
    assert [one["generation_settings"]["seed"] for one in objects] == [7, 8, 7, 8]


async def test_interleaved_choices_keep_their_index(gateway: Running) -> None:
    lines = await gateway.events("/v1/completions", {"prompt": ["a b", "c d"]})
    texts = {0: "", 1: ""}
    for line in lines[:-1]:
        choice = json.loads(line)["choices"][0]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "a b", 1: "c d"}
    assert lines[-1] == "[DONE]"


async def test_tokenize_and_detokenize(gateway: Running) -> None:
    tokens = (await gateway.post("/tokenize", {"content": "a b"})).json()["tokens"]
    assert tokens == [97, 130]
    body = (await gateway.post("/detokenize", {"tokens": tokens})).json()
    assert body == {"content": "<97><130>"}
    assert (await gateway.post("/tokenize", {})).json() == {"tokens": []}
    assert (await gateway.post("/detokenize", {})).json() == {"content": ""}


async def test_a_form_is_a_body_too(gateway: Running) -> None:
    files = {"content": (None, "7 8"), "with_pieces": (None, "true")}
    answer = await gateway.client.post("/tokenize", files=files)
    plain = await gateway.post("/tokenize", {"content": "7 8", "with_pieces": True})
    assert answer.json() == plain.json()


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/v1/messages"])
async def test_a_file_where_a_form_has_a_value_is_refused(gateway: Running, path: str) -> None:
    for name in fields_of(BODIES[ENDPOINTS["POST", path].body]):
        files = {"prompt": (None, "a"), "messages": (None, "[]"), "max_tokens": (None, "1")}
        answer = await gateway.client.post(path, files=files | {name: ("x", b"\xff")})
        assert answer.json()["error"]["param"] == name


async def test_models_describe_what_is_loaded(gateway: Running) -> None:
    for path in ("/v1/models", "/models"):
        body = (await gateway.client.get(path)).json()
        assert body["data"][0]["id"] == body["models"][0]["name"] == "fake"
        assert body["data"][0]["meta"]["n_vocab"] == 1000


async def test_health_tells_state_and_slots(gateway: Running) -> None:
    for path in ("/health", "/v1/health"):
        response = await gateway.client.get(path)
        assert response.json() == {"status": "ok", "slots_idle": 2, "slots_processing": 0}
    with_slots = (await gateway.client.get("/health?include_slots")).json()
    assert [slot["id"] for slot in with_slots["slots"]] == [0, 1]


async def test_livez_and_readyz(gateway: Running) -> None:
    assert (await gateway.client.get("/livez")).json() == {"status": "alive"}
    assert (await gateway.client.get("/readyz")).json() == {"status": "ready"}
    gateway.pool.dispatcher.drain()
    assert (await gateway.client.get("/livez")).status_code == 200
    assert (await gateway.client.get("/readyz")).status_code == 503
    health = await gateway.client.get("/health")
    assert health.status_code == 503 and "error" in health.json()


async def test_props_hold_both_eras(gateway: Running) -> None:
    body = (await gateway.client.get("/props")).json()
    settings = body["default_generation_settings"]
    assert settings["params"]["temperature"] == settings["temperature"] == 0.800000011920929
    assert body["total_slots"] == 2 and body["assistant_name"] == ""
    assert settings["n_ctx"] == 4096 and settings["tfs_z"] == 1.0
    answer = (await gateway.post("/completion", {"prompt": "a", "n_predict": 1})).json()
    assert set(answer["generation_settings"]) <= set(settings), "as the documents of 2024 say"


async def test_slots_list_global_ids(gateway: Running) -> None:
    body = (await gateway.client.get("/slots")).json()
    assert [(slot["id"], slot["state"]) for slot in body] == [(0, 0), (1, 0)]


async def test_metrics_count_tokens(gateway: Running) -> None:
    await gateway.post("/completion", {"prompt": "a b"})
    response = await gateway.client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4"
    assert response.headers["process-start-time-unix"].isdigit()
    assert b"Process-Start-Time-Unix" in [name for name, _ in response.headers.raw]
    assert "llamacpp:tokens_predicted_total 2" in response.text


async def test_options_needs_no_route(gateway: Running) -> None:
    response = await gateway.client.options("/v1/x", headers={"Origin": "http://a.b"})
    assert response.status_code == 200 and response.text == ""
    assert response.headers["access-control-allow-origin"] == "http://a.b"
    assert response.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    answer = await gateway.client.get("/health", headers={"Origin": "http://a.b"})
    assert answer.headers["access-control-allow-origin"] == "http://a.b"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/nope"), ("GET", "/completion"), ("POST", "/health"), ("GET", "/health/")],
)
async def test_unknown_path_or_method_is_file_not_found(
    gateway: Running, method: str, path: str
) -> None:
    response = await gateway.client.request(method, path)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert response.text == (
        '{"error":{"message":"File Not Found","type":"not_found_error","code":404}}'
    )


async def test_endpoints_to_come_say_so(gateway: Running) -> None:
    response = await gateway.post("/v1/systemone", {})
    assert response.status_code == 501
    assert response.json()["error"]["type"] == "not_supported_error"
    assert "not supported yet" in response.json()["error"]["message"]
    assert response.headers["x-should-retry"] == "false"


async def test_what_llama_server_has_disabled_is_403(gateway: Running) -> None:
    response = await gateway.client.get("/tools")
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "feature_disabled"


async def test_any_content_type_is_json(gateway: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = await gateway.client.post(
            "/completion", content=b'{"prompt":"a"}', headers={"content-type": kind}
        )
        assert response.json()["content"] == "a"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":"\xff"}', "not valid JSON"),
        (b'{"a":"\\ud800"}', "not valid JSON"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "nests deeper"),
    ],
)
async def test_bad_bodies_are_400(gateway: Running, content: bytes, words: str) -> None:
    response = await gateway.client.post("/v1/chat/completions", content=content)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_request_id_is_echoed_or_drawn(gateway: Running) -> None:
    response = await gateway.client.get("/health", headers={"X-Request-Id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    assert response.headers["server"] == "llamapool"
    odd = await gateway.client.get("/health", headers={"X-Request-Id": 'a"b c'})
    assert len(odd.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/completion", {"prompt": "a", "top_k": "x"}, "top_k"),
        ("/completion", {"prompt": "a", "n_predict": -2}, "n_predict"),
        ("/completion", {}, "prompt"),
        ("/v1/chat/completions", {**CHAT, "tools": [{}]}, "tools[0]"),
        ("/v1/completions", {"prompt": "a", "suffix": 1}, "suffix"),
        ("/completion", {"prompt": "a", "n": 128}, "n"),
        ("/completion", {"prompt": ["a"] * 128}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 32, "n": 4}, "prompt"),
        ("/tokenize", {"content": 3}, "content"),
        ("/completion", {"prompt": "a", "model": 3}, "model"),
    ],
)
async def test_bad_fields_are_named(
    gateway: Running, path: str, body: dict[str, Any], param: str
) -> None:
    response = await gateway.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_too_large_a_body_is_413(gateway: Running) -> None:
    response = await gateway.client.post("/completion", content=b" " * (65 * 1024 * 1024))
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "invalid_request_error"
