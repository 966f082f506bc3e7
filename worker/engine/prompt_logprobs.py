"""Log probabilities of a prompt's own tokens (`echo` with `logprobs`).

Each token's logits are needed, and a batch has room for few, so such a prompt is read in small
pieces from its first token on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from protocol.wire.facts import TokenProb
from worker.engine.backend import Backend, BatchRow, Vocabulary
from worker.engine.slot import Slot, SlotTask


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
    """Return the prompt tokens to send; the first one has no probability."""
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
    return tuple(told)
