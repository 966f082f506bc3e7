"""Deltas that wait for a client: how large they are, and one made of many."""

from protocol.wire.facts import TokenProb
from protocol.wire.messages import Delta

_TOKEN_BYTES, _ALTERNATIVE_BYTES = 40, 200
"""Of a token id, and of an alternative token with its text."""


def size_of(delta: Delta) -> int:
    """Estimate the bytes of memory that a delta takes."""
    n_chars = len(delta.text) + len(delta.reasoning)
    for call in delta.tool_calls:
        n_chars += _ALTERNATIVE_BYTES + len(call.name) + len(call.arguments)
    n_alternatives = sum(1 + len(prob.top) for prob in (*delta.probs, *delta.prompt))
    return n_chars + _TOKEN_BYTES * len(delta.tokens) + _ALTERNATIVE_BYTES * n_alternatives


def merge(deltas: list[Delta]) -> Delta:
    """Make one delta of consecutive ones: texts joined, the last counts and timings."""
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    tokens: list[int] = []
    probs: list[TokenProb] = []
    prompt: tuple[TokenProb, ...] = ()
    for delta in deltas:
        tokens += delta.tokens
        probs += delta.probs
        prompt = prompt or delta.prompt
    return Delta(
        text="".join([delta.text for delta in deltas]),
        reasoning="".join([delta.reasoning for delta in deltas]),
        tool_calls=tuple([call for delta in deltas for call in delta.tool_calls]),
        tokens=tuple(tokens),
        sampler_state=last.sampler_state,
        probs=tuple(probs),
        prompt=prompt,
        n_predicted=last.n_predicted,
        timings=next((d.timings for d in reversed(deltas) if d.timings is not None), None),
    )


def compact(deltas: list[Delta], sizes: list[int]) -> None:
    """Merge in place the deltas that were added since the last call.

    `sizes` has the sizes of the merged ones before them. Those are merged again only with one of at
    least half their size, so that a token is copied O(log n) times, not n times.
    """
    deltas[len(sizes) :] = [merge(deltas[len(sizes) :])]
    sizes.append(size_of(deltas[-1]))
    while len(sizes) > 1 and sizes[-2] < 2 * sizes[-1]:
        deltas[-2:] = [merge(deltas[-2:])]
        sizes[-2:] = [sum(sizes[-2:])]
