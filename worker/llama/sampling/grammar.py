"""Grammars over the tokens of a model: each text is read once, and shared by the tasks with it."""

import functools
import threading
from collections.abc import Sequence

from protocol.errors import InvalidRequest
from worker.grammar.gbnf.automaton import Automaton
from worker.grammar.gbnf.matcher import Matcher, TokenGrammar
from worker.grammar.gbnf.parser import parse
from worker.grammar.gbnf.search_time import SharedSearchTime
from worker.grammar.gbnf.symbols import GrammarError
from worker.grammar.gbnf.trie import TokenTrie
from worker.llama.vocabulary import LlamaVocabulary

_KEPT = 8
"""Grammars kept: each may hold some 60 MB of states and masks."""


class Grammars:
    """Opens grammars. Any thread may call it; what it returns belongs to the engine's thread."""

    def __init__(
        self, vocabulary: LlamaVocabulary, pieces: Sequence[bytes], eog: Sequence[int]
    ) -> None:
        self._vocabulary = vocabulary
        self._pieces = pieces
        self._eog = eog
        self._trie: TokenTrie | None = None
        self._building = threading.Lock()
        self._time = SharedSearchTime()
        self._rules = functools.lru_cache(_KEPT)(self._read)

    def open(self, text: str) -> Matcher:
        """Begin a text under a grammar; raises `InvalidRequest`."""
        try:
            return Matcher(self._rules(text), self._pieces, self._time)
        except GrammarError as error:
            message = f"Failed to parse grammar: {error}"
            raise InvalidRequest(message, param="grammar") from error

    def _read(self, text: str) -> TokenGrammar:
        grammar = parse(text, self._token_of)
        with self._building:
            if self._trie is None:
                self._trie = TokenTrie(self._pieces)
        return TokenGrammar(Automaton(grammar), self._trie, self._eog)

    def _token_of(self, text: str) -> int | None:
        tokens = self._vocabulary.tokenize(text, add_special=False, parse_special=True)
        return tokens[0] if len(tokens) == 1 else None
