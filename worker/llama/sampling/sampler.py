"""The sampler of one task: chains, stages, grammar, and the probabilities that are asked for.

Most tokens take one ctypes call (`llama_sampler_sample`), or `GreedySampler` where the chain would
only find the greatest logit. Where Python must see the candidates (grammar, a stage of our own,
probabilities after sampling), they are written to numpy memory and the parts are applied one by
one, like llama-server's `common_sampler_sample`. The grammar is ours (`worker.grammar.gbnf`),
because llama.cpp's takes exponential time for some grammars and cannot be stopped.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.facts import TokenProb
from protocol.wire.sampling import UNSET_SEED, SamplingParams
from worker.engine.backend import NoTokenAllowed, Sampled
from worker.grammar.gbnf.matcher import Matcher
from worker.grammar.gbnf.symbols import GrammarError
from worker.llama.sampling.chain import (
    Chain,
    SamplerModel,
    build,
    draws,
    has_dry,
    has_penalties,
    open_greedy,
    resolve_biases,
    window,
)
from worker.llama.sampling.grammar import Grammars
from worker.llama.sampling.greedy import Logits
from worker.llama.sampling.hidden_state import HiddenState, State, ended_at
from worker.llama.sampling.probabilities import final_prob, raw_prob
from worker.llama.sampling.reasoning import open_reasoning_tracker
from worker.llama.sampling.stages import Candidates, Stage
from worker.llama.sampling.trigger import Trigger

_NEVER = np.float32(-np.inf)

Outputs = np.ndarray[tuple[int, int], np.dtype[np.float32]]
"""The logits of several rows."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """What all samplers of the engine thread share."""

    candidates: Candidates
    pieces: Sequence[bytes]
    """Text of each token, control tokens included."""
    shown: Sequence[bytes]
    """Text of each token in an answer and in its probabilities."""
    grammars: Grammars


class LlamaSampler:
    """Sampler state of one task; any thread may make it, the engine's alone uses it."""

    def __init__(
        self,
        params: SamplingParams,
        model: SamplerModel,
        scratch: Scratch,
        triggers: Sequence[str] = (),
    ) -> None:
        self._parts: list[Chain | Stage] = []  # first: whatever fails, they are freed
        self.params = params = _seeded(params)
        self._n_probs = params.n_probs
        self._scratch = scratch
        self.state: State = ()
        self._grammar: Matcher | None = None
        self._lazy: Matcher | None = None
        """The grammar while it waits for its trigger."""
        self._tokenize = _tokenizer(model)
        self._trigger = Trigger(triggers, scratch.pieces, self._tokenize) if triggers else None
        self._reasoning = open_reasoning_tracker(
            params, scratch.pieces, self._tokenize, is_lazy=self._trigger is not None
        )
        try:
            grammar = scratch.grammars.open(params.grammar) if params.grammar else None
            self._grammar, self._lazy = (None, grammar) if triggers else (grammar, None)
            self.biases = resolve_biases(params, model)
            self._parts = build(params, self.biases, model)
        except TaskError:
            self.close()
            raise
        self._hidden = HiddenState(self._parts, draws=draws(params))
        self.has_started = False
        """Another worker has chosen the first tokens."""
        only = self._parts[0]
        is_fast = self._grammar is None and self._reasoning is None
        is_fast = is_fast and len(self._parts) == 1 and not params.post_sampling_probs
        self._fast = only.handle if is_fast and isinstance(only, Chain) else None
        self.backend_sampling = False
        """Later rows hold a token that the device chose, and no logits."""
        self._greedy = open_greedy(params, self.biases, model) if self._fast is not None else None
        self.chosen = -1
        """The token of the row that comes next, if it was chosen already (`sampler_threads.py`)."""

    @property
    def seed(self) -> int:
        """The seed that is used."""
        return self.params.seed

    @property
    def lone_chain(self) -> Chain | None:
        """The chain, if it alone chooses every token and no probabilities are asked for."""
        is_alone = self._fast is not None and self._trigger is None and not self._n_probs
        (*_, last) = self._parts
        return last if is_alone and isinstance(last, Chain) else None

    @property
    def busy_chain(self) -> Any:
        """The chain, if choosing a token is one call that looks at the whole vocabulary."""
        return None if self._greedy is not None or self.backend_sampling else self._fast

    def remember(self, tokens: Sequence[int]) -> None:
        """Let penalties and DRY see the prompt, or what stands for it."""
        for token in tokens:
            for part in self._parts:
                part.accept(token)

    def sample(self, context: Any, index: int, read: Callable[[int], Logits]) -> Sampled:
        """Choose a token from a row; `read` looks its logits up, where anything needs them."""
        try:
            if self._fast is None:
                return self._judged(read(index))
            if self.chosen >= 0:
                token, self.chosen = self.chosen, -1
            elif self._greedy is not None and not self.backend_sampling:
                token = self._greedy.choose(read(index))
            else:
                token = int(lib.llama_sampler_sample(self._fast, context, index))
            self._watch(token)
            return Sampled(token, self._raw_prob(token, read(index)) if self._n_probs else None)
        except GrammarError as error:
            raise _not_followed(error) from error

    def _judged(self, logits: Logits) -> Sampled:
        """Choose a token where a grammar, reasoning or probabilities need the candidates."""
        token = self._choose(self._forced(logits))
        prob = None
        if self._n_probs and self.params.post_sampling_probs:
            raw = self._scratch.candidates.raw
            prob = final_prob(token, raw, self._n_probs, self._scratch.shown)
        elif self._n_probs:
            prob = self._raw_prob(token, logits)
        if self._grammar is not None:
            self._require_allowed(token)
            self._grammar.accept(token)
        self._watch(token)
        for part in self._parts:
            part.accept(token)
        ends = self._reasoning.ended_at if self._reasoning is not None else ()
        self.state = self._hidden.current(ends)
        return Sampled(token, prob)

    def _raw_prob(self, token: int, logits: Logits) -> TokenProb:
        return raw_prob(token, logits, self._n_probs, self._scratch.shown)

    # ---- what another worker began ------------------------------------------------------------

    def replay(self, tokens: Sequence[int], state: Sequence[float]) -> None:
        """Take over from a sampler of the same parameters and seed that chose these tokens.

        Penalties, grammar, trigger and reasoning follow from the tokens, the rest is in the state.
        """
        ends = ended_at(state, len(tokens))
        try:
            for i, token in enumerate(tokens):
                if i in ends:
                    self.end_reasoning()
                self._replay(token)
        except GrammarError as error:
            raise _not_followed(error) from error
        if len(tokens) in ends:
            self.end_reasoning()
        self._hidden.restore(len(tokens), state)
        self.state = tuple(state)
        self.has_started = True

    def _replay(self, token: int) -> None:
        """Take a token that was chosen before, as `_judged` does."""
        self._drop_impossible()
        if self._grammar is not None:
            if not self._grammar.is_allowed(token):
                message = "the grammar does not allow the tokens of the partial answer"
                raise InvalidRequest(message, param="partial_answer.tokens")
            self._grammar.accept(token)
        self._watch(token)
        for part in self._parts:
            part.accept(token)

    # -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything; may be called twice."""
        for part in self._parts:
            part.free()
        self._parts = []
        self._fast = None
        self._grammar = self._lazy = None

    def __del__(self) -> None:
        # Nothing else closes the sampler of a task that was prepared and never started.
        self.close()

    def end_reasoning(self) -> bool:
        """End the current reasoning now; return False if there is none."""
        return self._reasoning is not None and self._reasoning.end()

    def _forced(self, logits: Logits) -> Logits:
        """Leave only the token that ends the reasoning, if the reasoning must end now."""
        token = self._drop_impossible()
        if token is None:
            return logits
        only = np.full_like(logits, -np.inf)
        only[token] = logits[token]
        return only

    def _drop_impossible(self) -> int | None:
        """Return the token that ends the reasoning, if one must come and the grammar allows it."""
        reasoning = self._reasoning
        if reasoning is None or (token := reasoning.forced) is None:
            return None
        if self._grammar is not None and not self._grammar.is_allowed(token):
            reasoning.give_up()  # the grammar allows no reasoning here
            return None
        return token

    def _watch(self, token: int) -> None:
        """Track the reasoning; a trigger inside it does not count, but its end may be one."""
        reasoning = self._reasoning
        if reasoning is None:
            self._await(token)
            return
        was_open = reasoning.is_open
        reasoning.accept(token)
        if not was_open:
            self._await(token)
        elif not reasoning.is_open and reasoning.ended_with:
            for mark in self._tokenize(reasoning.ended_with):
                self._await(mark)

    def _await(self, token: int) -> None:
        """Apply the grammar from now on if its trigger has come."""
        if self._trigger is None or (written := self._trigger.watch(token)) is None:
            return
        self._trigger = None
        assert self._lazy is not None, "a trigger without a grammar"
        for mark in written:
            if not self._lazy.is_allowed(mark):
                return  # the grammar does not allow the text, which stays free
            self._lazy.accept(mark)
        self._grammar, self._lazy, self._fast = self._lazy, None, None

    # ---- choosing -----------------------------------------------------------------------------

    def _choose(self, logits: Logits) -> int:
        """Rejection sampling: the grammar judges one token, and masks all only if it refuses it."""
        candidates = self._scratch.candidates
        candidates.fill(logits)
        token = self._apply_parts()
        if self._grammar is None or self._grammar.is_allowed(token):
            return token
        self._hidden.refused()
        candidates.fill(np.where(self._grammar.mask(), logits, _NEVER))
        if not candidates.any_possible():
            raise NoTokenAllowed
        token = self._apply_parts()
        self._require_allowed(token)  # biases may have left nothing that the grammar allows
        return token

    def _apply_parts(self) -> int:
        raw = self._scratch.candidates.raw
        for part in self._parts:
            part.apply(raw)
        token = self._scratch.candidates.selected()
        if token < 0:
            raise NoTokenAllowed
        return token

    def _require_allowed(self, token: int) -> None:
        if self._grammar is not None and not self._grammar.is_allowed(token):
            raise NoTokenAllowed


def open_sampler(
    params: SamplingParams,
    model: SamplerModel,
    scratch: Scratch,
    prompt: Sequence[int],
    triggers: Sequence[str] = (),
) -> LlamaSampler:
    """Build a task's sampler and show it the end of the prompt, as far as any window reaches."""
    sampler = LlamaSampler(params, model, scratch, triggers)
    n_seen = max(
        window(params.repeat_last_n, model) if has_penalties(params) else 0,
        window(params.dry_penalty_last_n, model) if has_dry(params) else 0,
    )
    if n_seen:
        sampler.remember(_seen(params, model, prompt)[-n_seen:])
    return sampler


def _not_followed(error: GrammarError) -> TaskError:
    text = f"The grammar cannot be followed: {error}"
    return TaskError(ErrorCode.INVALID_REQUEST, text, param="grammar")


def _seeded(params: SamplingParams) -> SamplingParams:
    """Draw a seed if none is given, for llama.cpp does not report the one that it draws."""
    if params.seed != UNSET_SEED:
        return params
    return replace(params, seed=secrets.randbelow(UNSET_SEED))


def _seen(params: SamplingParams, model: SamplerModel, prompt: Sequence[int]) -> Sequence[int]:
    if params.penalty_prompt is None:
        return prompt
    if isinstance(params.penalty_prompt, str):
        return model.vocabulary.tokenize(
            params.penalty_prompt, add_special=False, parse_special=False
        )
    if any(not 0 <= token < model.vocabulary.n_tokens for token in params.penalty_prompt):
        raise InvalidRequest(
            "Field 'penalty_prompt': contains invalid tokens", param="penalty_prompt"
        )
    return params.penalty_prompt


def _tokenizer(model: SamplerModel) -> Callable[[str], Sequence[int]]:
    def tokenize(text: str) -> Sequence[int]:
        return model.vocabulary.tokenize(text, add_special=False, parse_special=True)

    return tokenize
