"""Random sequences of requests that meet what is left in slots and files."""

from collections.abc import Iterator
from random import Random
from typing import Any

from tests.parity.random_requests.drawn.values import add, sampling, stops, text
from tests.parity.random_requests.steps import ANSWERED, Step

_FILES = ("a.bin", "b.bin")
_ACTIONS = (
    "turn",
    "turn",
    "turn",
    "turn",
    "edit",
    "edit",
    "cut",
    "anew",
    "leave",
    "long",
    "slots",
    "erase",
    "save",
    "restore",
    "chat",
    "several",
    "tokens",
)
_FIELDS = (
    "content",
    "tokens_cached",
    "timings/cache_n",
    "timings/predicted_n",
    "truncated",
    "nothing",
    "generation_settings/seed",
    "tokens",
    "prompt",
    "stop_type",
)


def session(chance: Random) -> Iterator[Step]:
    """Begin with empty slots, and go on with a text in turns."""
    for slot in (0, 1):
        yield Step(path=f"/slots/{slot}?action=erase", body={}, is_compared=False)
    story = [f"{chance.randint(100, 999)} {text(chance)}"]
    for _ in range(chance.randint(3, 7)):
        slot = chance.choice((0, 0, 0, 1))
        action = chance.choice(_ACTIONS)
        yield from _step(chance, action, slot, story)


def _step(chance: Random, action: str, slot: int, story: list[str]) -> Iterator[Step]:
    match action:
        case "slots":
            yield Step(path="/slots", method="GET")
            return
        case "erase":
            yield Step(path=f"/slots/{slot}?action=erase", body={})
            return
        case "save" | "restore":
            name = chance.choice(_FILES)
            yield Step(path=f"/slots/{slot}?action={action}", body={"filename": name})
            return
        case "edit":
            story[chance.randrange(len(story))] = text(chance)
        case "cut":
            del story[max(1, len(story) // 2) :]
        case "anew":
            story[:] = [text(chance)]
        case _:
            story.append(text(chance))
    yield _request(chance, action, slot, "".join(story))
    if action in ("turn", "long") and chance.random() < 0.6:
        yield _request(chance, action, slot, "".join(story) + ANSWERED + text(chance))


def _request(chance: Random, action: str, slot: int, prompt: str) -> Step:
    body = sampling(chance) if chance.random() < 0.3 else {"temperature": 0, "seed": 42}
    body |= {"cache_prompt": chance.random() < 0.85, "id_slot": slot}
    body["n_predict"] = chance.choice((1, 3, 8, 20))
    _extras(body, chance)
    match action:
        case "chat":
            said = [{"role": "user", "content": prompt}]
            return Step(path="/v1/chat/completions", body={**body, "messages": said})
        case "leave":
            body |= {"n_predict": 60, "stream": True, "prompt": prompt}
            return Step(path="/completion", body=body, n_events=chance.randint(1, 20))
        case "long":
            body |= {"n_predict": chance.choice((90, 150)), "ignore_eos": True}
            add(body, chance, 0.5, "n_keep", lambda: chance.choice((0, 1, 5, 40, -1, 500)))
            add(body, chance, 0.4, "n_discard", lambda: chance.choice((0, 1, 16, 60, 500)))
        case "several":
            body.pop("id_slot")
            body.pop("stream", None)
            parts = [prompt, [text(chance), 300, text(chance)], [5, 6, 7], {"prompt_string": "x"}]
            prompts = chance.sample(parts, chance.randint(1, 4))
            body |= {"prompt": prompts, "cache_prompt": False}
            return Step(path="/completion", body=body, mixes_slots=True)
        case "tokens":
            return Step(
                path="/completion", body={**body, "prompt": [chance.randint(300, 900), prompt]}
            )
    return Step(path="/completion", body={**body, "prompt": prompt})


def _extras(body: dict[str, Any], chance: Random) -> None:
    add(body, chance, 0.3, "stream", lambda: True)
    add(body, chance, 0.2, "stop", lambda: stops(chance))
    add(body, chance, 0.2, "n_probs", lambda: chance.choice((1, 3)))
    add(body, chance, 0.15, "return_tokens", lambda: True)
    add(body, chance, 0.15, "return_progress", lambda: True)
    add(body, chance, 0.15, "timings_per_token", lambda: True)
    add(body, chance, 0.15, "post_sampling_probs", lambda: True)
    add(body, chance, 0.1, "n_indent", lambda: chance.choice((1, 2)))
    add(body, chance, 0.1, "response_fields", lambda: chance.sample(_FIELDS, 4))


_SCALES = (0, 0, 0.5, 1, 2, -1)


def adapters(chance: Random) -> Iterator[Step]:
    """Set scales of adapters, and bring some with requests."""
    for _ in range(chance.randint(2, 4)):
        ids = chance.choices((0, 1), k=chance.randint(0, 3))
        scales = [{"id": i, "scale": chance.choice(_SCALES)} for i in ids]
        if chance.random() < 0.4:
            yield Step(path="/lora-adapters", body=scales)
            yield Step(path="/lora-adapters", method="GET")
        body = {
            "prompt": text(chance),
            "n_predict": 6,
            "temperature": 0,
            "seed": 1,
            "cache_prompt": False,
        }
        add(body, chance, 0.6, "lora", lambda: scales)  # noqa: B023
        yield Step(path="/completion", body=body)


def views(chance: Random) -> Iterator[Step]:
    """Look at what a server says of itself."""
    yield from (
        Step(path=path, method="GET")
        for path in (
            "/props",
            "/slots",
            "/health",
            "/v1/health",
            "/models",
            "/v1/models",
            "/nowhere",
            "/slots?fail_on_no_slot=1",
            "/lora-adapters",
            "/api/show",
            "/api/tags",
            "/completion",
            "/props?model=x",
            "/metrics",
        )
    )
    yield from (
        Step(path=path, body=chance.choice(({}, {"a": 1}, [], None, 7)))
        for path in (
            "/props",
            "/slots/0",
            "/slots/x?action=erase",
            "/slots/9?action=erase",
            "/slots/0?action=x",
            "/health",
            "/models",
            "/nowhere",
            "/slots/-1?action=erase",
            "/api/show",
        )
    )
