"""Continues answers that another worker began: reads their tokens, and goes on after the last one.

The tokens are read like a prompt. Text, stop strings, limits and the sampler's state are those of
an unbroken run, because the same code takes the same tokens. Pure, except for the sampler.
"""

import math
from dataclasses import replace

from protocol.errors import InvalidRequest
from protocol.wire.begun import Begun
from protocol.wire.sampling import UNSET_SEED
from worker.engine.backend import Backend, Sampler, Vocabulary
from worker.engine.media import without_placeholders
from worker.engine.task import BegunAnswer, EngineTask
from worker.output.generation import TextGeneration


def resume_task(task: EngineTask, begun: Begun, vocabulary: Vocabulary) -> EngineTask:
    """Return a task that continues where another worker stopped; raises `InvalidRequest`.

    An answer that has ended already has the `finish` of its generation set.
    """
    check(begun, len(vocabulary.pieces))
    if not begun.tokens and begun.seed is None:
        return task  # no worker has begun with it
    generation = TextGeneration.start(task.params)
    generation.truncated = task.truncated
    texts: list[str] = []
    for token in begun.tokens:
        if generation.finish is not None:
            raise InvalidRequest("the answer ends before its last token", param="begun.tokens")
        is_eog = vocabulary.is_eog[token]
        piece = vocabulary.shown(token, task.shown, shows_end=task.shows_end)
        texts.append(generation.accept(piece, is_eog=is_eog, is_full=False, elapsed_ms=0.0))
    reading = [*task.prompt, *begun.tokens[:-1]] if begun.tokens else task.prompt
    answer = BegunAnswer(begun, generation, "".join(texts), reading)
    return replace(task, begun=answer, echo_from=-1 if begun.echoed else task.echo_from)


def check(begun: Begun, n_vocab: int) -> None:
    """Raise `InvalidRequest` for an answer that no worker can have begun."""
    _require("tokens", all(0 <= token < n_vocab for token in begun.tokens))
    _require("seed", begun.seed is None or 0 <= begun.seed <= UNSET_SEED)
    counts = {
        "n_text": (begun.n_text,),
        "n_reasoning": (begun.n_reasoning,),
        "n_arguments": begun.n_arguments,
        "n_cached": (begun.n_cached,),
        "prompt_ms": (begun.prompt_ms,),
        "predicted_ms": (begun.predicted_ms,),
    }
    for name, values in counts.items():
        _require(name, all(math.isfinite(value) and value >= 0 for value in values))


def _require(name: str, is_valid: bool) -> None:
    if not is_valid:
        raise InvalidRequest(
            f"begun.{name}: no worker can have reported this", param=f"begun.{name}"
        )


def open_sampler(backend: Backend, task: EngineTask) -> Sampler:
    """Make the sampler of a task, in the state after what was begun; any thread may do so."""
    params, sent = task.params, task.begun.sent if task.begun is not None else Begun()
    if sent.seed is not None:
        params = replace(params, seed=sent.seed)
    sampler = backend.open_sampler(params, without_placeholders(task.prompt), task.triggers)
    if sent.tokens:
        try:
            sampler.replay(sent.tokens, sent.sampler_state)
        except Exception:
            sampler.close()
            raise
    return sampler
