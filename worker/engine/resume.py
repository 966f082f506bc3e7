"""Continues answers that another worker began: reads their tokens, and generates the rest.

The tokens are read like a prompt. Text, stop strings, limits and the sampler's state are those of
an unbroken run, because the same code takes the same tokens. Pure, except for the sampler.
"""

import math
from dataclasses import replace

from protocol.errors import InvalidRequest
from protocol.wire.partial_answer import PartialAnswer
from protocol.wire.sampling import UNSET_SEED
from worker.engine.backend import Backend, Sampler, Vocabulary
from worker.engine.media import without_placeholders
from worker.engine.task import EngineTask, ResumedAnswer
from worker.output.generation import TextGeneration


def resume_task(task: EngineTask, partial: PartialAnswer, vocabulary: Vocabulary) -> EngineTask:
    """Return a task that continues where another worker stopped; raises `InvalidRequest`.

    An answer that has ended already has the `finish` of its generation set.
    """
    check(partial, len(vocabulary.pieces))
    if not partial.tokens and partial.seed is None:
        return task  # no worker has started it
    generation = TextGeneration.start(task.params)
    generation.truncated = task.truncated
    texts: list[str] = []
    for token in partial.tokens:
        if generation.finish is not None:
            raise InvalidRequest(
                "the answer ends before its last token", param="partial_answer.tokens"
            )
        is_eog = vocabulary.is_eog[token]
        piece = vocabulary.shown(token, task.shown, shows_end=task.shows_end)
        texts.append(generation.accept(piece, is_eog=is_eog, is_full=False, elapsed_ms=0.0))
    reading = [*task.prompt, *partial.tokens[:-1]] if partial.tokens else task.prompt
    answer = ResumedAnswer(partial, generation, "".join(texts), reading)
    return replace(task, resumed=answer, echo_from=-1 if partial.echoed else task.echo_from)


def check(partial: PartialAnswer, n_vocab: int) -> None:
    """Raise `InvalidRequest` for an answer that no worker can have generated."""
    _require("tokens", all(0 <= token < n_vocab for token in partial.tokens))
    _require("seed", partial.seed is None or 0 <= partial.seed <= UNSET_SEED)
    counts = {
        "n_text": (partial.n_text,),
        "n_reasoning": (partial.n_reasoning,),
        "n_arguments": partial.n_arguments,
        "n_cached": (partial.n_cached,),
        "prompt_ms": (partial.prompt_ms,),
        "predicted_ms": (partial.predicted_ms,),
    }
    for name, values in counts.items():
        _require(name, all(math.isfinite(value) and value >= 0 for value in values))


def _require(name: str, is_valid: bool) -> None:
    if not is_valid:
        raise InvalidRequest(
            f"partial_answer.{name}: no worker can have reported this",
            param=f"partial_answer.{name}",
        )


def open_sampler(backend: Backend, task: EngineTask) -> Sampler:
    """Make the sampler of a task, in the state after the last token; any thread may do so."""
    params, sent = (
        task.params,
        task.resumed.partial if task.resumed is not None else PartialAnswer(),
    )
    if sent.seed is not None:
        params = replace(params, seed=sent.seed)
    # Looking for placeholders takes 10 ms in a prompt of 100,000 tokens.
    prompt = without_placeholders(task.prompt) if task.media else task.prompt
    sampler = backend.open_sampler(params, prompt, task.triggers)
    if sent.tokens:
        try:
            sampler.replay(sent.tokens, sent.sampler_state)
        except Exception:
            sampler.close()
            raise
    return sampler
