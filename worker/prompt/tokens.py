"""Tokenizes texts within the limits of the context, which are checked before tokenizing."""

from collections.abc import Sequence
from dataclasses import replace

from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.sampling import SamplingParams
from worker.engine.backend import Backend

Mixed = str | tuple[int | str, ...]

_MAX_BIASES = 8192
"""Maximum tokens of all texts of `logit_bias`; also the limit of single tokens in a request."""
_CUT_FROM = 4
"""Maximum length, in contexts, of a prompt whose middle is cut out."""


class PromptTokenizer:
    """Knows the vocabulary and the context; safe in any thread."""

    def __init__(self, backend: Backend, *, cuts_long: bool) -> None:
        """`cuts_long`: the middle of a prompt that does not fit is cut out."""
        self._backend = backend
        self._card = backend.card
        self._cuts_long = cuts_long
        self._longest_piece = max(len(piece) for piece in backend.vocabulary.special_pieces)

    def in_tokens(self, params: SamplingParams) -> SamplingParams:
        """Tokenize the texts among the parameters, to spare the engine's thread."""
        prompt, biases = params.penalty_prompt, params.logit_bias
        if isinstance(prompt, str):
            self.check_length(prompt)
            prompt = tuple(self._backend.tokenize(prompt, add_special=False, parse_special=False))
        if any(isinstance(token, str) for token, _ in biases):
            biases = self._biases(biases)
        if prompt is params.penalty_prompt and biases is params.logit_bias:
            return params
        return replace(params, penalty_prompt=prompt, logit_bias=biases)

    def _biases(self, asked: Sequence[tuple[int | str, float]]) -> tuple[tuple[int, float], ...]:
        """Turn the texts of `logit_bias` into tokens, each with the bias of its text."""
        found: list[tuple[int, float]] = []
        for token, bias in asked:
            found += [(like, bias) for like in self._biased(token)]
            if len(found) > _MAX_BIASES:
                message = f"Field 'logit_bias': its texts have more than {_MAX_BIASES} tokens"
                raise InvalidRequest(message, param="logit_bias")
        return tuple(found)

    def _biased(self, token: int | str) -> Sequence[int]:
        if isinstance(token, int):
            return (token,)
        return self._backend.tokenize(token, add_special=False, parse_special=False)

    def read(self, prompt: Mixed, *, add_special: bool = True) -> list[int]:
        """Tokenize a prompt; only a leading text gets the model's special tokens."""
        self.check_length(*((prompt,) if isinstance(prompt, str) else prompt))
        return self.tokenize(prompt, add_special=add_special, parse_special=True)

    def tokenize(self, content: Mixed, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokenize what need not fit into the context: the gateway and a time limit bound it."""
        parts = (content,) if isinstance(content, str) else content
        tokens: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                tokens += self._backend.tokenize(
                    part, add_special=add_special and i == 0, parse_special=parse_special
                )
            else:
                tokens.append(self._valid(part))
        return tokens

    def _valid(self, token: int) -> int:
        if not 0 <= token < self._card.n_vocab:
            raise InvalidRequest("Prompt contains invalid tokens", param="prompt")
        return token

    def check_length(self, *parts: str | int) -> None:
        """Refuse a text before tokenizing if the whole context could not hold it in any case.

        Where the middle of a long prompt is cut out, it may be four times as long.
        """
        n_min = sum(
            -(-len(part) // self._longest_piece) if isinstance(part, str) else 1 for part in parts
        )
        if n_min > self._card.n_ctx_total * (_CUT_FROM if self._cuts_long else 1):
            raise self.too_long(n_min)

    def fit(self, tokens: list[int], n_keep: int) -> tuple[list[int], bool]:
        """Refuse a prompt that fills the context, or cut its middle out, as in 2023."""
        n_ctx = self._card.n_ctx
        if len(tokens) < n_ctx:
            return tokens, False
        if not self._cuts_long:
            raise self.too_long(len(tokens))
        n_keep = min(n_ctx - 4, len(tokens) if n_keep < 0 else n_keep)
        block = (n_ctx - n_keep) // 2
        n_erased = (len(tokens) - n_keep - block) // block * block
        return tokens[:n_keep] + tokens[n_keep + n_erased :], True

    def too_long(self, n_tokens: int) -> TaskError:
        """Make the refusal of a prompt of this many tokens, or at least as many."""
        n_ctx = self._card.n_ctx
        return TaskError(
            ErrorCode.CONTEXT_EXCEEDED,
            f"request ({n_tokens} tokens) exceeds the available context size ({n_ctx} tokens),"
            " try increasing it",
            detail={"n_prompt_tokens": n_tokens, "n_ctx": n_ctx},
        )

    def valid_tokens(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return tokens that the vocabulary has; llama.cpp aborts on others."""
        return tuple(self._valid(token) for token in tokens)
