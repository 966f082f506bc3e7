"""What keys use is counted under a bounded number of names, and nothing is lost."""

import random

from gateway.metrics.keys import MAX_KEYS, NO_KEY, OTHER, KeyCounts, keep_busiest


def use(counts: KeyCounts, key: str, n: int) -> None:
    counts.ended(key, n_prompt=n, n_cached=0, n_predicted=n, queue_s=0.5)


def shown(counts: KeyCounts) -> set[str]:
    return {key for key, _ in counts.rows}


def test_each_of_few_keys_has_its_own_row() -> None:
    counts = KeyCounts()
    for key in ("ann", "bob", ""):
        use(counts, key, 10)
    assert shown(counts) == {"ann", "bob", NO_KEY}
    assert counts.rows["ann", "prompt"] == 10 and counts.rows["ann", "queue_s"] == 0.5
    assert repr(counts) == "<KeyCounts shown=2 hidden=0>"


def test_a_busy_key_takes_the_row_of_an_idle_one() -> None:
    counts = KeyCounts()
    for i in range(MAX_KEYS):
        use(counts, f"k{i}", 100 + i)
    for _ in range(4):
        use(counts, "late", 60)
    assert "late" in shown(counts) and "k0" not in shown(counts)
    assert counts.rows["late", "predicted"] == 60, "it begins at zero with its own row"
    assert counts.rows[OTHER, "predicted"] == 100 + 3 * 60
    assert counts.label("late") == "late" and counts.label("k0") == OTHER
    assert counts.label("") == NO_KEY


def test_no_row_falls_and_no_token_is_lost_among_many_keys() -> None:
    counts, draw = KeyCounts(), random.Random(7)
    total, before = 0, dict(counts.rows)
    for _ in range(5_000):
        n = draw.randrange(50)
        total += n
        use(counts, f"k{int(draw.paretovariate(0.3)) % 400}", n)
        fallen = {key for key, n in before.items() if counts.rows.get(key, n) < n}
        assert not {key for key in fallen if key[0] == OTHER}
        before = dict(counts.rows)
    assert sum(n for (_, what), n in counts.rows.items() if what == "predicted") == total
    assert len(shown(counts)) <= MAX_KEYS + 1


def test_the_rows_of_ended_gateways_are_bounded_too() -> None:
    rows = {(f"k{i}", what): float(i) for i in range(200) for what in ("prompt", "predicted")}
    kept = keep_busiest(rows | {(NO_KEY, "prompt"): 1.0})
    assert {key for key, _ in kept} == {f"k{i}" for i in range(150, 200)} | {OTHER, NO_KEY}
    assert sum(kept.values()) == sum(rows.values()) + 1
