"""Whatever a gateway sends, the worker lives, and serves the next task."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.wire import messages as m
from protocol.wire.partial_answer import PartialAnswer
from protocol.wire.sampling import SamplingParams
from protocol.wire.sharing import Demand, Returned, Stay, Successor
from protocol.wire.side_tasks import EndReasoning, SetLora, SetSystemPrompt, SlotAction
from tests.envelopes import of_task
from tests.worker.link.pair import Pair, generate

HUGE = (1 << 63) - 1


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A connected pair."""
    pair = Pair(f"ipc://{tmp_path}/wire")
    pair.attach()
    pair.until(m.Ready)
    yield pair
    pair.close()


def serves(pair: Pair) -> None:
    task_id = 4711
    pair.gateway.send(generate(task_id, "hello"))
    pair.turn_until(lambda: any(isinstance(one, m.Terminal) for one in ended(pair, task_id)))
    assert isinstance(ended(pair, task_id)[-1], m.Done), ended(pair, task_id)


def ended(pair: Pair, task_id: int) -> list[Any]:
    return [one for one in of_task(pair.gateway.heard, task_id) if isinstance(one, m.Terminal)]


@pytest.mark.parametrize("heartbeat_s", [0.0, -1.0, math.nan, math.inf, 1e300, 1e-9])
def test_an_impossible_heartbeat_is_refused(pair: Pair, heartbeat_s: float) -> None:
    n_before = len(pair.gateway.of(m.Hello))
    pair.gateway.send(m.Welcome(gateway="g", heartbeat_s=heartbeat_s))
    pair.until(m.Hello, n_before + 1)
    pair.until(m.Ready, 2)
    serves(pair)


def test_a_gateway_that_wants_rare_heartbeats_does_not_stop_the_main_loop(pair: Pair) -> None:
    pair.gateway.send(m.Welcome(gateway="g", heartbeat_s=3600.0))
    serves(pair)
    start = time.monotonic()
    for _ in range(3):
        pair.link.turn(0.05)
    assert time.monotonic() - start < 60


def test_tasks_beyond_the_credits_are_refused(pair: Pair) -> None:
    n = 200
    pair.gateway.send(*(generate(i, "x", n_predict=-1) for i in range(n)))
    pair.until(m.Failed, n - 2 - 16 - 16)
    assert {one.code for one in pair.gateway.of(m.Failed)} == {ErrorCode.UNAVAILABLE}
    pair.gateway.send(*(m.Envelope(m.TaskKey(i), m.Cancel()) for i in range(n)))
    pair.turn_until(lambda: all(len(ended(pair, i)) == 1 for i in range(n)))
    serves(pair)


@pytest.mark.slow
def test_gateways_that_follow_one_another_without_end_are_given_up(pair: Pair) -> None:
    sessions = pair.link._sessions
    for number in range(70):
        pair.gateway.name = f"g{number}"
        n_hello = len(pair.gateway.of(m.Hello))
        for peer in list(pair.gateway._sent):
            pair.gateway.peer = peer
            pair.gateway.send(Successor())
        pair.until(m.Hello, n_hello + 1)
        assert len(sessions) <= 64
    assert len(sessions) == 64


@pytest.mark.parametrize(
    "message",
    [
        Demand(waiting=HUGE, oldest_s=math.nan),
        Demand(waiting=-HUGE, oldest_s=-math.inf),
        Demand(waiting=1, oldest_s=1e308),
        Returned(n=HUGE),
        Returned(n=-HUGE),
        Stay(),
        m.Opened(),
        m.Welcome(gateway="g" * 100_000),
        m.Envelope(m.TaskKey(HUGE, -HUGE), m.Cancel()),
        m.Envelope(m.TaskKey(1), EndReasoning(target=-HUGE)),
    ],
)
def test_what_makes_no_sense_is_borne(pair: Pair, message: m.FrameItem) -> None:
    pair.gateway.send(*[message] * 50)
    serves(pair)


PARAMS = SamplingParams(n_predict=4, temperature=0.0)
GENERATIONS = {
    "no prompt": m.Generate(params=PARAMS),
    "a prompt of no tokens": m.Generate(prompt=(HUGE, -HUGE), params=PARAMS),
    "a long prompt": m.Generate(prompt="x" * 1_000_000, params=PARAMS),
    "an odd chain": m.Generate(prompt="x", params=PARAMS, chain=b"abc"),
    "a long chain": m.Generate(prompt="x", params=PARAMS, chain=bytes(8 << 20)),
    "a long salt": m.Generate(prompt="x", params=PARAMS, salt="s" * 1_000_000),
    "media of nobody": m.Generate(prompt="x", params=PARAMS, media=(b"x", b"")),
    "a schema of noise": m.Generate(prompt="x", params=PARAMS, schema="[" * 100_000),
    "a chat of noise": m.Generate(chat=m.Chat(messages=({"role": 5},)), params=PARAMS),
    "a chat of what no JSON has": m.Generate(
        chat=m.Chat(messages=({"role": "user", "content": [{1.5: b"x", None: 1 << 63}]},)),
        params=PARAMS,
    ),
    "tools of noise": m.Generate(
        chat=m.Chat(messages=({"role": "user", "content": "x"},), tools=({"a": None},)),
        params=PARAMS,
    ),
    "partial answer with no tokens": m.Generate(
        prompt="x", params=PARAMS, partial_answer=PartialAnswer(tokens=(HUGE, -1), seed=-HUGE)
    ),
    "partial answer with more text": m.Generate(
        prompt="x",
        params=PARAMS,
        partial_answer=PartialAnswer(tokens=(97,), n_text=HUGE, n_reasoning=-HUGE),
    ),
    "partial answer with a state": m.Generate(
        prompt="x",
        params=PARAMS,
        partial_answer=PartialAnswer(
            tokens=(97,), sampler_state=(math.nan,) * 10_000, n_arguments=(HUGE,)
        ),
    ),
}


@pytest.mark.parametrize("name", GENERATIONS)
def test_a_generation_of_nonsense_ends_once(pair: Pair, name: str) -> None:
    pair.gateway.send(m.Envelope(m.TaskKey(1), GENERATIONS[name], slot=HUGE))
    pair.gateway.send(m.Envelope(m.TaskKey(2), GENERATIONS[name], slot=-HUGE))
    pair.turn_until(lambda: bool(ended(pair, 1) and ended(pair, 2)))
    serves(pair)
    assert len(ended(pair, 1)) == len(ended(pair, 2)) == 1


NUMBERS = ("n_predict", "seed", "top_k", "n_probs", "n_keep", "repeat_last_n", "min_keep")
REALS = ("temperature", "top_p", "min_p", "typical_p", "dynatemp_range", "mirostat_tau")


@pytest.mark.parametrize("value", [HUGE, -HUGE, 1 << 40, math.nan, math.inf, -1e308])
def test_parameters_of_nonsense_end_their_task(pair: Pair, value: float) -> None:
    names = NUMBERS if isinstance(value, int) else REALS
    known = [name for name in names if hasattr(PARAMS, name)]
    assert known
    for number, name in enumerate(known):
        changed: dict[str, Any] = {name: value}
        params = replace(PARAMS, **changed)
        task = m.Envelope(m.TaskKey(number), m.Generate(prompt="hi", params=params))
        pair.gateway.send(task)
        pair.gateway.send(m.Envelope(m.TaskKey(number), m.Cancel()))
    pair.turn_until(lambda: all(ended(pair, number) for number in range(len(known))))
    serves(pair)


def test_a_task_that_is_sent_twice_does_not_end_the_worker(pair: Pair) -> None:
    pair.gateway.send(*[generate(1, "hello", n_predict=100)] * 3)
    pair.turn_until(lambda: bool(ended(pair, 1)))
    serves(pair)


def test_settings_of_nonsense_are_borne(pair: Pair) -> None:
    orders = (
        SetLora(scales=((HUGE, math.nan), (-1, 1.0)), version=(HUGE, "")),
        SetLora(scales=((0, 1e38),), version=(1, "g")),
        SetSystemPrompt(prompt="x" * 1_000_000, version=(-HUGE, "g" * 1000)),
        SlotAction(action="save", filename="../x", owner="a/b"),
        SlotAction(action="nothing", filename=""),
    )
    for number, order in enumerate(orders):
        pair.gateway.send(m.Envelope(m.TaskKey(number), order, slot=HUGE))
    pair.turn_until(lambda: all(ended(pair, number) for number in range(len(orders))))
    pair.gateway.send(m.Envelope(m.TaskKey(9), SetSystemPrompt(prompt="", version=(HUGE, "z"))))
    pair.turn_until(lambda: bool(ended(pair, 9)))
    serves(pair)
