"""How likely a prompt's own tokens were: who wants to know it, and what is said of them.

For that each token's logits are needed, and a batch has room for few: such a prompt is read in
small pieces, from its first token on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from protocol.wire.facts import TokenProb
from worker.engine.backend import Backend, BatchRow, Vocabulary
from worker.engine.slot import Slot, SlotTask


def is_probed(slot: Slot) -> bool:
    """Tell whether the task of a busy slot wants to know how likely its prompt was."""
    task = slot.active.task
    return not slot.active.is_resumed and task.echo_from >= 0 and task.params.n_probs > 0


def rooms(slots: Sequence[Slot], n_spare: int) -> Mapping[int, int]:
    """Say how many tokens each slot with a probed prompt may read: the oldest takes the spare."""
    probed = sorted(filter(is_probed, slots), key=lambda slot: slot.active.order)
    return {slot.id: 1 if i else 1 + max(0, n_spare) for i, slot in enumerate(probed)}


def probe(backend: Backend, slot: Slot, index: int, row: BatchRow) -> None:
    """Note how likely each token was that follows one of a row just read."""
    run, start = slot.active, len(slot.tokens) - len(row.tokens)
    n_probs = run.task.params.n_probs
    for offset, token in enumerate(run.task.prompt[start + 1 : start + 1 + len(row.tokens)]):
        run.probed.append(backend.probe(index, offset, token, n_probs))


def echo(run: SlotTask, vocabulary: Vocabulary) -> tuple[TokenProb, ...]:
    """Return the tokens of a prompt that are to be told; nobody knows how likely the first was."""
    task = run.task
    if task.echo_from < 0:
        return ()
    known = [None, *run.probed] if run.probed else [None] * len(task.prompt)
    told = [
        one or TokenProb(id=token, piece=vocabulary.special_pieces[token], p=math.nan)
        for token, one in list(zip(task.prompt, known, strict=True))[task.echo_from :]
    ]
    if vocabulary.adds_space and told:
        told[0] = replace(told[0], piece=told[0].piece.removeprefix(b" "))
    return tuple(told)
