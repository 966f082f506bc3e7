"""The vocabulary as Python tables, and tokenizing."""

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import llama_cpp.llama_cpp as lib

from worker.engine.backend import SpecialTokens, Vocabulary
from worker.llama.special_texts import SpecialTexts
from worker.llama.text_pieces import split

_HIDDEN = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN

_SHORT_TEXT = 4 * 1024
"""Bytes that any stack and any pre-tokenizer can take."""
_DEEP_STACK = 256 * 1024 * 1024
"""For the longest piece in one match; unused pages cost nothing."""


class LlamaVocabulary:
    """Owns no memory: valid as long as the model is."""

    def __init__(self, vocab: Any) -> None:
        self.handle = vocab
        self.n_tokens = int(lib.llama_vocab_n_tokens(vocab))
        self._buffer = ctypes.create_string_buffer(256)

    def tables(self, *, shows_special: bool = False) -> Vocabulary:
        """Look every token up once (50 ms for 49k), so that no step calls into C for text.

        `shows_special` writes control tokens into the texts, too.
        """
        special = [self._piece(token, special=True) for token in range(self.n_tokens)]
        plain = list(special)
        is_eog = [bool(lib.llama_vocab_is_eog(self.handle, t)) for t in range(self.n_tokens)]
        for token in () if shows_special else range(self.n_tokens):
            if is_eog[token]:
                plain[token] = b""
            elif lib.llama_vocab_get_attr(self.handle, token) & _HIDDEN:
                plain[token] = self._piece(token, special=False)
        add_bos = bool(lib.llama_vocab_get_add_bos(self.handle))
        return Vocabulary(plain, special, is_eog, add_bos, self.special(), self._adds_space)

    def special(self) -> SpecialTokens:
        """Name the tokens with a meaning of their own."""
        vocab = self.handle
        return SpecialTokens(
            bos=self.bos(),
            eos=self.eos(),
            sep=int(lib.llama_vocab_sep(vocab)),
            adds_eos=bool(lib.llama_vocab_get_add_eos(vocab)),
            adds_sep=bool(lib.llama_vocab_get_add_sep(vocab)),
            fim_pre=int(lib.llama_vocab_fim_pre(vocab)),
            fim_suf=int(lib.llama_vocab_fim_suf(vocab)),
            fim_mid=int(lib.llama_vocab_fim_mid(vocab)),
            fim_rep=int(lib.llama_vocab_fim_rep(vocab)),
            fim_sep=int(lib.llama_vocab_fim_sep(vocab)),
        )

    def token_text(self, token: int) -> str:
        """Name a special token, or return an empty string where the model has none."""
        if not 0 <= token < self.n_tokens:
            return ""
        return self._piece(token, special=True).decode(errors="replace")

    def bos(self) -> int:
        """Token that begins a text, or -1."""
        return int(lib.llama_vocab_bos(self.handle))

    def eos(self) -> int:
        """Token that ends a text, or -1."""
        return int(lib.llama_vocab_eos(self.handle))

    def newline(self) -> int:
        """Token of a line break, or -1."""
        return int(lib.llama_vocab_nl(self.handle))

    def suppressed(self) -> list[int]:
        """Tokens that must never be chosen, according to the model file."""
        n = ctypes.c_int32(0)
        tokens = lib.llama_vocab_get_suppress_tokens(self.handle, ctypes.byref(n))
        return [tokens[i] for i in range(n.value)] if tokens else []

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Turn text into tokens; safe in any thread.

        A long text is tokenized piece by piece, so that each call is short. Pieces after the first
        begin where no token crosses, unless a run of more than 48 KiB had to be cut.
        """
        data = text.encode(errors="replace")
        if len(data) <= _SHORT_TEXT:
            return self._tokenize(data, add_special, parse_special)
        special = self._special_texts[parse_special]
        pieces = split(
            data, adds_space=self._adds_space, has_regex=self._has_regex, special=special
        )
        first = next(pieces)
        if len(first) == len(data):
            return self._tokenize_piece(first, add_special, parse_special)
        before, after = self._around() if add_special else ([], [])
        tokens = before + self._tokenize_piece(first, False, parse_special)
        for piece in pieces:
            own = piece.removeprefix(b" ") if self._adds_space else piece
            tokens += self._tokenize_piece(own, False, parse_special)
        return tokens + after

    def _tokenize_piece(self, data: bytes, add_special: bool, parse_special: bool) -> list[int]:
        if not self._has_regex or len(data) <= _SHORT_TEXT:
            return self._tokenize(data, add_special, parse_special)
        return _with_deep_stack(lambda: self._tokenize(data, add_special, parse_special))

    @cached_property
    def _special_texts(self) -> tuple[SpecialTexts, SpecialTexts]:
        """The special tokens that are looked for in any text, and with `parse_special`."""
        found: tuple[list[bytes], list[bytes]] = [], []
        for token in range(self.n_tokens):
            kind = lib.llama_vocab_get_attr(self.handle, token)
            if kind & (_HIDDEN | lib.LLAMA_TOKEN_ATTR_USER_DEFINED):
                text = lib.llama_vocab_get_text(self.handle, token) or b""
                found[1].append(text)
                if not kind & _HIDDEN:
                    found[0].append(text)
        return SpecialTexts(found[0]), SpecialTexts(found[1])

    @cached_property
    def _has_regex(self) -> bool:
        return int(lib.llama_vocab_type(self.handle)) == int(lib.LLAMA_VOCAB_TYPE_BPE)

    @cached_property
    def _adds_space(self) -> bool:
        """Whether every text is taken as if a space stood before it."""
        first = self._tokenize(b"a", False, False)[:1]
        return bool(first) and self._piece(first[0], special=True).startswith(b" ")

    def _around(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that stand before and after a text."""
        plain = self._tokenize(b"a", False, False)
        marked = self._tokenize(b"a", True, False)
        n = next((i for i in range(len(marked)) if marked[i : i + len(plain)] == plain), 0)
        return marked[:n], marked[n + len(plain) :]

    def _tokenize(self, data: bytes, add_special: bool, parse_special: bool) -> list[int]:
        room = len(data) + 8
        while True:
            out = (lib.llama_token * room)()
            n = lib.llama_tokenize(
                self.handle, data, len(data), out, room, add_special, parse_special
            )
            if n >= 0:
                return list(out[:n])
            room = -n

    def _piece(self, token: int, *, special: bool) -> bytes:
        n = lib.llama_token_to_piece(
            self.handle, token, self._buffer, len(self._buffer), 0, special
        )
        if n < 0:
            self._buffer = ctypes.create_string_buffer(-n)
            return self._piece(token, special=special)
        return self._buffer.raw[:n]


_stack_size_lock = threading.Lock()


def _with_deep_stack(work: Callable[[], list[int]]) -> list[int]:
    """Run `work` on a thread whose stack survives deep recursion in C++."""
    result: Future[list[int]] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    with _stack_size_lock:  # the size is a setting of the process, read when a thread starts
        before = threading.stack_size(_DEEP_STACK)
        try:
            threading.Thread(target=run, name="tokenize", daemon=True).start()
        finally:
            threading.stack_size(before)
    return result.result()
