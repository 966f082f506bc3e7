"""Namespaces of the cache and the sessions that requests name."""

from typing import Any

import pytest

from gateway.http.origin.request_origin import namespace, read_origin
from gateway.pool.routing.origin import Origin
from protocol.errors import InvalidRequest
from protocol.wire.cached import BLOCK_BYTES
from protocol.wire.messages import Generate
from protocol.wire.sampling import SamplingParams


def read(
    body: dict[str, Any] | None = None, headers: dict[str, str] | None = None, own: str = ""
) -> Origin:
    pairs = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
    return read_origin({"tenant": "t", "namespace": own, "headers": pairs}, body or {})


@pytest.mark.parametrize(
    ("isolation", "n_keys", "is_apart"),
    [
        *(("", 0, False), ("", 1, False), ("", 2, True)),
        *(("key", 0, False), ("key", 1, True), ("none", 5, False)),
    ],
)
def test_tenants_are_apart_as_soon_as_there_are_two(
    isolation: str, n_keys: int, is_apart: bool
) -> None:
    assert namespace(isolation, "tenant", n_keys) == ("tenant" if is_apart else "")


def test_without_isolation_everything_is_common() -> None:
    assert read().salt == ""


def test_a_client_can_split_its_namespace_and_reach_no_other() -> None:
    own = {read(own=own).salt for own in ("a", "b")}
    split = {read({"cache_salt": salt}, own=own).salt for own in "ab" for salt in ("a", "b", "c")}
    assert len(own | split) == 8
    alone = read({"cache_salt": "a"}).salt
    assert alone not in own | split
    assert alone == read({"cache_salt": "a"}).salt


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"cache_salt": 5}, "cache_salt"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"prompt_cache_key": ["a"]}, "prompt_cache_key"),
        ({"session_id": 7}, "session_id"),
    ],
)
def test_a_wrong_type_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert caught.value.param == param


def test_null_says_nothing() -> None:
    fields = ("cache_salt", "prompt_cache_key", "session_id", "user", "metadata")
    assert read(dict.fromkeys(fields)) == read()
    assert read().session_key("m") == read().label_key("m") == 0


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"prompt_cache_key": "s"}, {}),
        ({"session_id": "s"}, {}),
        ({}, {"X-Session-ID": "s"}),
        ({}, {"X-Session-Affinity": "s"}),
        ({}, {"X-Conversation-Id": "s"}),
        ({}, {"x-litellm-session-id": "s"}),
        ({"prompt_cache_key": "other"}, {"X-Session-ID": "s"}),
    ],
)
def test_a_session_has_many_names(body: dict[str, Any], headers: dict[str, str]) -> None:
    assert read(body, headers).session == "s"


def test_a_user_is_a_hint_in_the_words_of_either_api() -> None:
    assert read({"user": "u"}).label == "u"
    assert read({"metadata": {"user_id": "u"}}).label == "u"
    assert read({"user": 5, "metadata": "x"}).label == ""


def test_sessions_of_models_namespaces_and_kinds_are_not_mixed_up() -> None:
    one = read({"session_id": "a", "user": "a"})
    other = read({"session_id": "a", "user": "a"}, own="tenant")
    keys = [key for origin in (one, other) for key in _keys(origin)]
    assert len(set(keys)) == 8


def _keys(origin: Origin) -> list[int]:
    return [key(model) for key in (origin.session_key, origin.label_key) for model in ("m", "n")]


def test_the_choices_of_a_prompt_are_fingerprinted_once() -> None:
    origin = Origin()
    task = Generate(prompt="x" * 600, params=SamplingParams())
    prefix, _ = origin.prompt(task, "m")
    assert prefix is origin.prompt(task, "m")[0]
    assert len(prefix.chain) == 2 * BLOCK_BYTES


def test_workers_learn_whose_tasks_are_one_tenants_and_not_the_name() -> None:
    one, same, other, nobody = (
        Origin(tenant=tenant).hidden_tenant for tenant in ("secret", "secret", "another", "")
    )
    assert one == same != other
    assert "secret" not in one
    assert nobody == ""
