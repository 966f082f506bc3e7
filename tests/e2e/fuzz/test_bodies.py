"""Whatever JSON arrives: no 500, no dead worker."""

import math
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from gateway.api.fields.bounds import bounds_of
from protocol.config.limits import LimitsConfig
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import FieldRow, describe, shape_of
from protocol.wire.shapes import Number
from protocol.wire.values import SAMPLER_NAMES
from tests.e2e.served import Served
from tests.examples import examples
from tests.models.shallow import N_TOKENS

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

NAMES = [name for row in describe(SamplingParams) for name in (row.name, *row.spec.aliases)]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.sampled_from([2**31, -(2**31), 2**63, 10**400, 0.5, -0.5, 1e30, -1e-30])
    | st.text(max_size=12)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=5,
)


BOUNDS = bounds_of(None, LimitsConfig())


def legal(row: FieldRow) -> st.SearchStrategy[Any]:
    """Values that a field must take, its limits among them."""
    shape = shape_of(row)
    low, high = (-1e6, 1e6)
    if isinstance(shape, Number):
        low, high = max(BOUNDS[shape.low], low), min(BOUNDS[shape.high], high)
    edges = st.sampled_from([row.default, low, high])
    if row.kind is float:
        return edges | st.floats(low, high)
    if row.kind is int:
        return edges.map(int) | st.integers(int(low), int(high))
    return st.sampled_from([True, False])


QUIET = ("n", "stream", "seed", "n_predict", "id_slot", "t_max_predict_ms", "n_probs")
ROWS = [row for row in describe(SamplingParams) if row.name not in QUIET]
LEGAL = st.fixed_dictionaries(
    {},
    optional={row.name: legal(row) for row in ROWS if row.kind in (int, float, bool)}
    | {
        "n_probs": st.integers(0, 5),
        "samplers": st.lists(st.sampled_from(list(SAMPLER_NAMES)), max_size=6),
        "stop": st.lists(st.text(min_size=1, max_size=3), max_size=3),
        "logit_bias": st.dictionaries(
            st.integers(0, N_TOKENS - 1).map(str), st.floats(-50, 50), max_size=3
        ),
        "penalty_prompt": st.text(max_size=5) | st.lists(st.integers(0, N_TOKENS - 1), max_size=4),
        "dry_sequence_breakers": st.lists(st.text(max_size=3), min_size=1, max_size=3),
    },
)
GRAMMARS = st.text(alphabet='rot:= "[](){}|*+?a-z01\n', max_size=40).map("root ::= ".__add__)
FIELDS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
BODIES = st.builds(
    lambda fields, prompt, grammar: fields | {"prompt": prompt} | grammar,
    FIELDS,
    st.text(max_size=20)
    | st.lists(st.integers(-1, 50_000) | st.text(max_size=4), max_size=5)
    | VALUES,
    st.just({}) | GRAMMARS.map(lambda text: {"grammar": text}),
)
MESSAGES = VALUES | st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "assistant", "x"])})
    | st.fixed_dictionaries({"role": st.just("user"), "content": VALUES}),
    max_size=3,
)
FUZZ = examples(
    80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def send(pool: Served, path: str, body: dict[str, Any]) -> None:
    """Send a body, cut short; only the client may be at fault."""
    response = pool.client.post(path, json=_finite(body))
    assert response.status_code < 500, (body, response.text)
    assert "json" in response.headers["content-type"] or "event-stream" in str(response.headers)


def _finite(value: Any) -> Any:
    """Leave out what JSON cannot say."""
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    return value


@FUZZ
@given(body=BODIES)
def test_completion_survives_any_body(pool: Served, body: dict[str, Any]) -> None:
    n = body.get("n")
    short = {"n_predict": 2, "n": 1 if isinstance(n, int) and n > 4 else n}
    send(pool, "/completion", body | short | {"stream": False})


@FUZZ
@given(fields=LEGAL, prompt=st.text(max_size=20), grammar=GRAMMARS | st.none())
def test_completion_survives_any_legal_values(
    pool: Served, fields: dict[str, Any], prompt: str, grammar: str | None
) -> None:
    response = pool.client.post(
        "/completion", json=fields | {"prompt": prompt, "grammar": grammar, "n_predict": 3}
    )
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        # The two that are legal by themselves and not together with a plain prompt.
        message = response.json()["error"]["message"]
        assert "grammar" in message or "reasoning_budget" in message


@FUZZ
@given(fields=FIELDS, messages=MESSAGES)
def test_chat_survives_any_body(pool: Served, fields: dict[str, Any], messages: Any) -> None:
    short = {"n_predict": 2, "n": 1, "stream": False}
    send(pool, "/v1/chat/completions", fields | short | {"messages": messages})


@FUZZ
@given(content=VALUES, path=st.sampled_from(["/tokenize", "/detokenize"]))
def test_token_endpoints_survive_any_body(pool: Served, content: Any, path: str) -> None:
    send(pool, path, {"content": content, "tokens": content})


@FUZZ
@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_400(pool: Served, data: bytes) -> None:
    response = httpx.post(f"{pool.url}/completion", content=data)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
