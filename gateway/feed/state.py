"""The state that the feed sends: sections of rows, from what the gateways know. Pure.

The sections are `pool`, `models`, `workers`, `load`, `queue`, `events`, `requests` and `samples`;
docs/running/pool-page.md describes their rows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from gateway.feed.changes import State
from gateway.feed.part import MAX_TEXT, GatewayPart, Row
from gateway.pool.watch.activity import SlotUse
from gateway.pool.watch.events import MAX_EVENTS
from protocol.wire.facts import ModelCard, Stats

N_REQUESTS = 50
"""Ended requests that the page shows."""
_IDLE, _BUSY = ".", "b"
"""A slot without a task, and one of whose task nothing is known yet."""
_LOAD = ("n_busy", "n_waiting", "tokens_per_s")
"""Fields of a worker that change all the time; they have rows of their own."""


def state_of(sections: State, parts: Sequence[GatewayPart]) -> State:
    """Add what each gateway alone has to what this one sees of the whole pool."""
    queue: dict[str, Counter[str]] = {}
    for part in parts:
        for model, keys in part.queue.items():
            queue.setdefault(model, Counter()).update(keys)
    return {
        **sections,
        "queue": {model: dict(keys) for model, keys in sorted(queue.items())},
        "events": _latest((part.events for part in parts), MAX_EVENTS),
        "requests": _latest((part.requests for part in parts), N_REQUESTS),
    }


def worker_sections(
    rows: Iterable[Row],
    cards: Mapping[str, ModelCard],
    stats: Mapping[str, Stats],
    parts: Sequence[GatewayPart],
) -> tuple[dict[str, Row], dict[str, Row]]:
    """Divide the rows of the admin API into what a worker is, and what it does now."""
    workers: dict[str, Row] = {}
    load: dict[str, Row] = {}
    for row in rows:
        name, card = row["name"], cards.get(row["name"])
        known = {key: row[key] for key in row if key not in (*_LOAD, "name")}
        workers[name] = {**known, **_of_card(card)}
        used = [use for part in parts for use in part.slots.get(name, ())]
        load[name] = {
            **{key: row[key] for key in _LOAD},
            **_cells(row["n_slots"], row["n_busy"], used),
            **_cache(stats.get(name)),
        }
    return workers, load


def _of_card(card: ModelCard | None) -> Row:
    if card is None:
        return {"n_ctx": 0, "device": "", "build": ""}
    return {"n_ctx": card.n_ctx, "device": card.device[:MAX_TEXT], "build": card.build}


def _cells(n_slots: int, n_busy: int, uses: Iterable[SlotUse]) -> Row:
    """Show a worker's slots: a letter for each, and the tokens of its task."""
    phases, tokens = [_IDLE] * n_slots, [0] * n_slots
    for slot, phase, n_tokens in uses:
        if slot < n_slots:
            phases[slot], tokens[slot] = phase, n_tokens
    n_unknown = n_busy - (n_slots - phases.count(_IDLE))
    idle = (i for i, phase in enumerate(phases) if phase == _IDLE)
    for i in list(islice(idle, max(0, n_unknown))):
        phases[i] = _BUSY
    return {"slots": "".join(phases), "tokens": tokens}


def _cache(stats: Stats | None) -> Row:
    if stats is None:
        return {"n_cells": 0, "n_used": 0}
    return {"n_cells": stats.n_kv, "n_used": stats.n_kv_used}


def _latest(sections: Iterable[Mapping[str, Row]], limit: int) -> dict[str, Row]:
    """Join rows of several gateways in the order of time, and keep the newest."""
    rows = [item for section in sections for item in section.items()]
    rows.sort(key=lambda item: item[1]["time"])
    return dict(rows[-limit:])
