"""What is sent to both servers, one request after the other."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.parity.ask import ask, generated
from tests.parity.cases import Case

ANSWERED = "{answer}"
"""Stands in a prompt for what llama-server has just written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request, and whether its client leaves before the end."""

    path: str
    body: Any = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    n_events: int = 0
    """Events of a stream after which the client leaves."""
    is_compared: bool = True
    mixes_slots: bool = False
    """It leaves open which slot does what."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of requests."""

    draw: Callable[[Random], Iterable[Step]]
    servers: tuple[str, ...] = ("plain",)
    """What they are sent to, by the names of `servers.py`."""


def one(draw: Callable[[Random], tuple[str, Any]]) -> Callable[[Random], Iterable[Step]]:
    """Make a kind of single requests."""

    def steps(chance: Random) -> Iterable[Step]:
        path, body = draw(chance)
        return [Step(path=path, body=body)]

    return steps


def send(client: httpx.Client, step: Step, before: Mapping[str, Any]) -> dict[str, Any]:
    """Send one request, and return the answer; none of a stream that is left."""
    text = json.dumps(step.body)
    if before and ANSWERED in text:
        text = text.replace(ANSWERED, json.dumps(generated(dict(before)))[1:-1])
    body = json.loads(text)
    case = Case(name="", path=step.path, body=body, method=step.method, headers=step.headers)
    if not step.n_events:
        return ask(client, case)
    with client.stream("POST", step.path, json=body) as response:
        for number, _ in enumerate(filter(None, response.iter_lines()), start=1):
            if number == step.n_events:
                break
    _wait_until_idle(client)
    return {"status": response.status_code, "body": ""}


def _wait_until_idle(client: httpx.Client) -> None:
    while any(slot["is_processing"] for slot in client.get("/slots").json()):
        time.sleep(0.01)
