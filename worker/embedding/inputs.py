"""Tokenizes texts for an embedder, and checks that they fit.

Inputs that would abort llama.cpp or overflow its positions are refused here.
"""

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.side_tasks import Embed, Rerank
from worker.engine.backend import Backend, Embedder
from worker.engine.media import Media

Text = str | tuple[int | str, ...]

LONG = 16 * 1024
"""Characters from which an input is tokenized before the engine gets it: that takes 10 ms."""
_PLACES = re.compile(r"\{query\}|\{document\}")


@dataclass(frozen=True, slots=True)
class MediaInput:
    """The single input of a task with images or sounds."""

    task: Embed
    tokens: list[int]
    media: Media


@dataclass(frozen=True, slots=True)
class LongInputs:
    """A task of which the long inputs have been tokenized."""

    task: Embed | Rerank
    tokens: Mapping[int, "array[int]"]
    """By index of the input; lists would take ten times as much memory."""


class InputReader:
    """Tokenizes the inputs of embeddings and the pairs of reranking; safe in any thread."""

    def __init__(self, backend: Backend, embedder: Embedder) -> None:
        self._backend = backend
        self._embedder = embedder
        self._special = backend.vocabulary.special
        self._longest_piece = max(len(piece) for piece in backend.vocabulary.special_pieces)

    def text(self, content: Text) -> list[int]:
        """Tokenize an input; only a leading text gets the model's special tokens."""
        parts = (content,) if isinstance(content, str) else content
        tokens: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                tokens += self._tokenize(part, add_special=i == 0, parse_special=True)
            else:
                tokens.append(self._valid(part))
        return self._checked(tokens)

    def pair(self, query: str, document: str) -> list[int]:
        """Tokenize a query with a document, as the model was trained to see them."""
        template = self._embedder.rank_template
        if template:
            # In one pass: "{document}" in a query must not be replaced.
            texts = {"{query}": query, "{document}": document}
            written = _PLACES.sub(lambda place: texts[place[0]], template)
            return self._checked(self._tokenize(written, add_special=False, parse_special=True))
        special = self._special
        eos = special.eos if special.eos >= 0 else special.sep
        end = [eos] if special.adds_eos and eos >= 0 else []
        sep = [special.sep] if special.adds_sep and special.sep >= 0 else []
        bos = [special.bos] if self._backend.vocabulary.add_bos and special.bos >= 0 else []
        asked = self._tokenize(query, add_special=False, parse_special=False)
        offered = self._tokenize(document, add_special=False, parse_special=False)
        return self._checked(bos + asked + end + sep + offered + end)

    def read_long(self, task: Embed | Rerank) -> LongInputs:
        """Tokenize the long inputs of a task; raises `TaskError`."""
        return LongInputs(task, {i: array("i", self.read(task, i)) for i in long_inputs(task)})

    def read(self, task: Embed | Rerank, index: int) -> list[int]:
        """Tokenize one input of a task; raises `TaskError`."""
        if isinstance(task, Rerank):
            return self.pair(task.query, task.documents[index])
        return self.text(task.inputs[index])

    def check_media(self, n: int) -> None:
        """Raise `TaskError` if an input with media does not fit into the context."""
        if n >= self._embedder.n_ctx:
            raise self._too_long(n)

    def _tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        n_min = len(text) // self._longest_piece
        if n_min > max(self._embedder.n_batch, self._embedder.n_ctx):
            raise self._too_long(n_min)  # a text this long cannot fit, so it is not tokenized
        return self._backend.tokenize(text, add_special=add_special, parse_special=parse_special)

    def _valid(self, token: int) -> int:
        if not 0 <= token < self._backend.card.n_vocab:
            raise InvalidRequest("Prompt contains invalid tokens", param="input")
        return token

    def _checked(self, tokens: list[int]) -> list[int]:
        if not tokens:
            raise InvalidRequest("Input content cannot be empty", param="input")
        embedder = self._embedder
        is_long = len(tokens) >= embedder.n_ctx if embedder.can_split else self._overflows(tokens)
        if is_long:
            raise self._too_long(len(tokens))
        return tokens

    def _overflows(self, tokens: list[int]) -> bool:
        return len(tokens) > min(self._embedder.n_batch, self._embedder.n_ctx)

    def _too_long(self, n: int) -> TaskError:
        """Return the error with llama-server's text, for batch or context."""
        n_batch, n_ctx = self._embedder.n_batch, self._embedder.n_ctx
        if not self._embedder.can_split and n > n_batch:
            return InvalidRequest(
                f"input ({n} tokens) is too large to process. increase the physical batch size "
                f"(current batch size: {n_batch})",
                param="input",
            )
        message = (
            f"input ({n} tokens) is larger than the max context size ({n_ctx} tokens). skipping"
        )
        if self._embedder.can_split:
            message = (
                f"request ({n} tokens) exceeds the available context size ({n_ctx} tokens), "
                "try increasing it"
            )
        detail = {"n_prompt_tokens": n, "n_ctx": n_ctx}
        return TaskError(ErrorCode.CONTEXT_EXCEEDED, message, detail=detail)


def long_inputs(task: Embed | Rerank) -> list[int]:
    """Return the indices of the inputs of a task that take long to tokenize."""
    return [i for i, n_chars in enumerate(lengths(task)) if n_chars >= LONG]


def lengths(task: Embed | Rerank) -> list[int]:
    """Return the length of each input in characters."""
    if isinstance(task, Rerank):
        return [len(task.query) + len(document) for document in task.documents]
    return [len(text) if isinstance(text, str) else _n_chars(text) for text in task.inputs]


def _n_chars(parts: tuple[int | str, ...]) -> int:
    return sum(len(part) for part in parts if isinstance(part, str))
