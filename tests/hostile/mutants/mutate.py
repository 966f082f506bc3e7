"""Changes a valid request as a seed says."""

import copy
import random
from dataclasses import replace
from typing import Any

from tests.hostile.case import HostileCase
from tests.hostile.mutants.around import AROUND
from tests.hostile.mutants.draft import Change, Draft
from tests.hostile.mutants.odd import FIELDS, REFUSABLE, odd, written
from tests.hostile.mutants.seeds import SEEDS


def mutant(seed: int, *headers: tuple[bytes, bytes]) -> tuple[HostileCase, str]:
    """Return a request that this seed alone decides, and the field that was made odd, if one was.

    `headers` are those that all requests have, such as a key.
    """
    rng = random.Random(seed)
    start = rng.choice(SEEDS)
    case = HostileCase(
        group="mutants",
        name="",
        path=start.path,
        method=start.method,
        headers=headers,
        hangs_up_s=start.hangs_up_s,
    )
    draft = Draft(case, copy.deepcopy(start.body))
    has_body = start.body is not None
    changes = rng.choices(_IN_BODY, _WEIGHTS, k=rng.choice((1, 1, 1, 2, 3))) if has_body else []
    told = [change(draft, rng) for change in changes]
    if len(changes) != 1:
        draft.key = ""
    draft.fields().update(start.pinned)
    draft.data = written(draft.body) if has_body else b""
    if not start.pinned and (not has_body or rng.random() < 0.25):
        draft.key = ""
        told += [rng.choice(AROUND)(draft, rng) for _ in range(rng.choice((1, 1, 2)))]
    name = f"{seed} {start.method} {start.path}: {'; '.join(told)}"
    return replace(draft.case, name=name, body=draft.data), draft.key


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container and key in it, down to the leaves."""
    found: list[tuple[Any, Any]] = []
    rest = [value]
    while rest:
        inner = rest.pop()
        pairs: list[tuple[Any, Any]] = []
        if isinstance(inner, dict):
            pairs = list(inner.items())
        elif isinstance(inner, list) and len(inner) < 100:
            pairs = list(enumerate(inner))
        found += [(inner, key) for key, _ in pairs]
        rest += [one for _, one in pairs]
    return found


def _shown(value: Any) -> str:
    return repr(value)[:40]


def _replaced(draft: Draft, rng: random.Random) -> str:
    places = _places(draft.body)
    if not places:
        draft.body = odd(rng)
        return f"body is {_shown(draft.body)}"
    holder, key = rng.choice(places)
    value = odd(rng)
    holder[key] = value
    if holder is draft.body and isinstance(key, str):
        draft.key = key
    return f"{key!r} is {_shown(value)}"


def _swapped(draft: Draft, rng: random.Random) -> str:
    places = _places(draft.body)
    if len(places) < 2:
        return "nothing swapped"
    (one, a), (other, b) = rng.sample(places, 2)
    one[a] = copy.deepcopy(other[b])
    return f"{a!r} is {b!r}"


def _removed(draft: Draft, rng: random.Random) -> str:
    places = _places(draft.body)
    if not places:
        return "nothing removed"
    holder, key = rng.choice(places)
    del holder[key]
    return f"no {key!r}"


def _added(draft: Draft, rng: random.Random) -> str:
    fields = draft.fields()
    if not fields:
        return _replaced(draft, rng)
    name = rng.choice(FIELDS)
    fields[name] = odd(rng)
    draft.key = name
    return f"{name} is {_shown(fields[name])}"


def _bombed(draft: Draft, rng: random.Random) -> str:
    fields = draft.fields()
    if not fields:
        return _replaced(draft, rng)
    name = rng.choice(list(REFUSABLE))
    fields[name] = copy.deepcopy(rng.choice(REFUSABLE[name]))
    return f"{name} is {_shown(fields[name])}"


def _renamed(draft: Draft, rng: random.Random) -> str:
    fields = draft.fields()
    if not fields:
        return _replaced(draft, rng)
    key = rng.choice(list(fields))
    new = rng.choice((key.upper(), key + "\x00", " " + key, key * 999, "", "__proto__", "\ud800"))
    fields[new] = fields.pop(key)
    return f"{key} is called {_shown(new)}"


def _spliced(draft: Draft, rng: random.Random) -> str:
    """Put fields of another endpoint's request in."""
    other = rng.choice(SEEDS)
    if not isinstance(draft.body, dict) or not isinstance(other.body, dict):
        return _replaced(draft, rng)
    draft.body.update(copy.deepcopy(other.body))
    return f"with {other.path}"


_IN_BODY: tuple[Change, ...] = (
    *(_replaced, _swapped, _removed, _added),
    *(_bombed, _renamed, _spliced),
)
_WEIGHTS = (8, 2, 1, 5, 4, 1, 1)
