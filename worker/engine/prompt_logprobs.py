"""Log probabilities of a prompt's own tokens (`echo` with `logprobs`).

Each token's logits are needed, and a batch has room for few, so such a prompt is read in small
pieces from its first token on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from protocol.errors import InvalidRequest
from protocol.wire.facts import TokenProb
from worker.engine.backend import Backend, BatchRow, Vocabulary
from worker.engine.slot import Slot, SlotTask

_MAX_COST = 1 << 19
"""A gateway reads all of it at once, in half a second: 6 us a token, 0.8 us an alternative."""
_TOKEN_COST = 8
"""Of a token itself, in alternatives."""


def check_echo(n_tokens: int, n_probs: int) -> None:
    """Raise `InvalidRequest` if the probabilities of so long a prompt are too many to send."""
    if n_probs > 0 and n_tokens * (_TOKEN_COST + n_probs) > _MAX_COST:
        most = _MAX_COST // (_TOKEN_COST + n_probs)
        asked = f"{n_tokens} tokens with {n_probs} alternatives each"
        message = f"Field 'logprobs': {asked} are too many to echo, at most {most} tokens"
        raise InvalidRequest(message, param="logprobs")


def is_probed(slot: Slot) -> bool:
    """Return whether the task of a busy slot asked for its prompt's probabilities."""
    task = slot.active.task
    return not slot.active.is_resumed and task.echo_from >= 0 and task.params.n_probs > 0


def read_limits(slots: Sequence[Slot], n_spare: int) -> Mapping[int, int]:
    """Return how many tokens each slot with such a prompt may read: the oldest takes the spare."""
    probed = sorted(filter(is_probed, slots), key=lambda slot: slot.active.order)
    return {slot.id: 1 if i else 1 + max(0, n_spare) for i, slot in enumerate(probed)}


def probe(backend: Backend, slot: Slot, index: int, row: BatchRow) -> None:
    """Record the probability of each token that follows one of a row just read."""
    run, start = slot.active, len(slot.tokens) - len(row.tokens)
    n_probs = run.task.params.n_probs
    for offset, token in enumerate(run.task.prompt[start + 1 : start + 1 + len(row.tokens)]):
        run.probed.append(backend.probe(index, offset, token, n_probs))


def echo(run: SlotTask, vocabulary: Vocabulary) -> tuple[TokenProb, ...]:
    """Return the prompt tokens to send; the first one has no probability.

    Without probabilities all their text is told as one.
    """
    task = run.task
    if task.echo_from < 0:
        return ()
    known = [None, *run.probed] if run.probed else [None] * len(task.prompt)
    told = [
        prob or TokenProb(id=token, piece=vocabulary.special_pieces[token], p=math.nan)
        for token, prob in list(zip(task.prompt, known, strict=True))[task.echo_from :]
    ]
    if vocabulary.adds_space and told:
        told[0] = replace(told[0], piece=told[0].piece.removeprefix(b" "))
    if told and not task.params.n_probs:
        told = [replace(told[0], piece=b"".join([token.piece for token in told]))]
    return tuple(told)
