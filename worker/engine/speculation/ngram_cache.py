"""llama.cpp's n-gram caches: how often each token followed an n-gram. Pure.

As `common_ngram_cache_draft` (common/ngram-cache.cpp): the text itself is asked first, with low
limits; then the cache of finished texts (dynamic), with high limits. The cache of a large corpus
(static) weighs both, and is asked last, alone. N-grams are tuples of 1 to 4 tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from worker.engine.speculation.draft import Drafter, DraftRequest, follow

NGRAM_MAX, NGRAM_STATIC = 4, 2
"""Tokens of the longest n-gram, and of those of the static cache; llama.cpp's."""
MAX_ENTRIES = 2_000_000
"""Maximum number of n-grams in the dynamic cache, all of which are in memory."""

Ngram = tuple[int, ...]
Followers = dict[int, int]
"""Token to the number of times that it followed."""
Cache = dict[Ngram, Followers]

_LAX = ((2, 66), (2, 50), (1, 50), (1, 50))
_STRICT = ((4, 75), (3, 66), (2, 66), (2, 66))
"""Minimum count of an n-gram, and minimum percentage of its most frequent follower, by size."""


def add(cache: Cache, tokens: Sequence[int], n_new: int) -> None:
    """Count the followers of the last `n_new` places of a text."""
    for size in range(1, NGRAM_MAX + 1):
        for i in range(max(len(tokens) - n_new, size), len(tokens)):
            followers = cache.setdefault(tuple(tokens[i - size : i]), {})
            followers[tokens[i]] = followers.get(tokens[i], 0) + 1


def merge(target: Cache, more: Mapping[Ngram, Followers]) -> None:
    """Add the counts of another cache."""
    for ngram, followers in more.items():
        if ngram not in target and len(target) >= MAX_ENTRIES:
            continue
        counts = target.setdefault(ngram, {})
        for token, n in followers.items():
            counts[token] = counts.get(token, 0) + n


def draft(
    tokens: Sequence[int], n_max: int, context: Cache, dynamic: Cache, static: Cache
) -> Ngram:
    """Draft up to `n_max` tokens, one at a time, while a cache has a follower within its limits."""
    text = list(tokens[-NGRAM_MAX:])
    if len(text) < NGRAM_STATIC:
        return ()
    drafted: list[int] = []
    while len(drafted) < n_max:
        corpus = static.get(tuple(text[-NGRAM_STATIC:]), {})
        token = _choose(context, text, corpus, _LAX)
        if token < 0:
            token = _choose(dynamic, text, corpus, _STRICT)
        if token < 0:
            token = _of_corpus(corpus)
        if token < 0:
            break
        drafted.append(token)
        text.append(token)
    return tuple(drafted)


def _choose(
    cache: Cache, text: Sequence[int], corpus: Followers, limits: Sequence[tuple[int, int]]
) -> int:
    """Return the follower that is within the limits, long n-grams first; -1 if there is none."""
    for size in range(min(NGRAM_MAX, len(text)), 0, -1):
        followers = cache.get(tuple(text[-size:]))
        if not followers:
            continue
        best, best_count, best_weight = -1, 0, 0
        for token, count in followers.items():
            weight = count * (100 * corpus[token] if token in corpus else 1)
            if weight > best_weight:
                best, best_count, best_weight = token, count, weight
        n_seen, percent = limits[size - 1]
        total = sum(followers.values())
        if total >= n_seen and 100 * best_count >= percent * total:
            return best
    return -1


def _of_corpus(corpus: Followers) -> int:
    total = sum(corpus.values())
    n_seen, percent = _LAX[NGRAM_STATIC - 1]
    if not corpus or total < n_seen:
        return -1
    best = max(corpus, key=lambda token: corpus[token])
    return best if 100 * corpus[best] >= percent * total else -1


@dataclass(slots=True)
class _TokenText:
    """What has been counted of one slot's text."""

    tokens: list[int] = field(default_factory=list)
    cache: Cache = field(default_factory=dict)

    def follow(self, tokens: Sequence[int]) -> bool:
        """Count the current text; returns whether that is done, or goes on in the next step."""
        n_known = follow(self.tokens, tokens)
        if not n_known:
            self.cache.clear()
        add(self.cache, self.tokens, len(self.tokens) - n_known)
        return len(self.tokens) == len(tokens)


class CacheLookup(Drafter):
    """A `Drafter` over the slots' texts and two caches of a worker."""

    def __init__(self, static: Cache, dynamic: Cache, n_max: int, n_min: int = 0) -> None:
        self._static = static
        self.dynamic = dynamic
        self._n_min = n_min
        self.n_max = n_max
        self.n_learnt = 0
        """Texts that the dynamic cache has taken in."""
        self.learnt: Cache = {}
        """What they added to it."""
        self._texts: dict[int, _TokenText] = {}

    def draft(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Return a draft for each request."""
        return list(self._drafts(requests))

    def _drafts(self, requests: Sequence[DraftRequest]) -> Iterator[list[int]]:
        for request in requests:
            text = self._texts.setdefault(request.slot, _TokenText())
            if not text.follow(request.tokens):
                yield []
                continue
            n_max = min(request.n_max, self.n_max)
            found = draft(request.tokens, n_max, text.cache, self.dynamic, self._static)
            yield request.kept(list(found), self._n_min)

    def learn(self, slot: int, tokens: Sequence[int]) -> None:
        """Add a finished text to the dynamic cache."""
        text = self._texts.pop(slot, None)
        if text is None:
            return
        merge(self.dynamic, text.cache)
        merge(self.learnt, text.cache)
        self.n_learnt += 1
