"""Beside llama.cpp's own grammars: the same tokens are allowed, wherever a text stands."""

import ctypes
import random
from collections.abc import Iterator
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from tests.models.shallow import N_ALL_TOKENS, shallow_path
from tests.worker.conftest import serving
from tests.worker.served import Served
from worker.grammar.gbnf.matcher import Matcher
from worker.grammar.json_schema.schema import to_gbnf
from worker.llama.sampling.stages import Candidates, view

pytestmark = pytest.mark.model

GRAMMARS = {
    "object": to_gbnf(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "n": {"type": "integer", "minimum": 3, "maximum": 1234},
            },
            "required": ["name"],
        }
    ),
    "any": to_gbnf({}),
    "pattern": to_gbnf({"type": "string", "pattern": "^[a-zé]+(foo|bar)?[0-9]{2,4}$"}),
    "enum": to_gbnf({"enum": ["red", "green", "größe", "日本語"]}),
    "all but": 'root ::= [^é日x]+ "x" root | ""',
    "any character": "root ::= .{1,40}",
    "named tokens": 'root ::= <|im_start|> !<|im_end|>+ | "a" <[5]> "b"',
    "ambiguous": 'root ::= ([a-z] | [a-c0-9])+ "!"',
    "ranges": "root ::= [😀-😎]+ [à-ÿ]*",
    "nested": 'root ::= "(" root ")" | "[" root "]" | ""',
    "empty rules": 'root ::= (ws item?)* "."\nws ::= [ \\t\\n]*\nitem ::= "x" | "yy"',
}


@pytest.fixture(scope="module")
def single() -> Iterator[Served]:
    """With all tokens, each of which is compared."""
    with serving(1, model=shallow_path(N_ALL_TOKENS)) as served:
        yield served


class Theirs:
    """llama.cpp's grammar sampler."""

    def __init__(self, served: Served, text: str) -> None:
        vocabulary = served.backend._vocab
        self._grammar: Any = lib.llama_sampler_init_grammar(
            vocabulary.handle, text.encode(), b"root"
        )
        assert self._grammar
        self._candidates = Candidates(vocabulary.n_tokens)
        self._zeros = np.zeros(vocabulary.n_tokens, np.float32)

    def mask(self) -> Any:
        raw = self._candidates.fill(self._zeros)
        lib.llama_sampler_apply(self._grammar, ctypes.byref(raw))
        return np.isfinite(view(raw)["logit"])

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self._grammar, token)

    def close(self) -> None:
        lib.llama_sampler_free(self._grammar)


def paths(ours: Matcher, theirs: Theirs, comparable: Any, seed: int) -> Iterator[tuple[Any, Any]]:
    """Go a random way through a grammar; yield both masks at each step."""
    chance = random.Random(seed)
    for _ in range(12):
        mine, other = ours.mask() & comparable, theirs.mask() & comparable
        yield mine, other
        following = np.flatnonzero(other & comparable).tolist()
        if not following:
            return
        token = chance.choice(following)
        assert ours.is_allowed(token)
        ours.accept(token)
        theirs.accept(token)


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_same_tokens_are_allowed(single: Served, name: str) -> None:
    backend = single.backend
    pieces = backend.vocabulary.special_pieces
    comparable = ~np.array(backend.vocabulary.is_eog)
    if name == "named tokens":  # llama.cpp refuses a named token that ends within a character
        comparable &= np.array(
            [piece.decode(errors="ignore").encode() == piece for piece in pieces]
        )
    for seed in range(2):
        theirs = Theirs(single, GRAMMARS[name])
        ours = backend._scratch.grammars.open(GRAMMARS[name])
        for mine, other in paths(ours, theirs, comparable, seed):
            different = np.flatnonzero(mine != other)
            assert not len(different), [pieces[token] for token in different[:8]]
        theirs.close()


def test_a_text_may_end_where_it_may_there(single: Served) -> None:
    eog = np.array(single.backend.vocabulary.is_eog)
    theirs = Theirs(single, GRAMMARS["nested"])
    ours = single.backend._scratch.grammars.open(GRAMMARS["nested"])
    (left,) = single.backend.tokenize("(", add_special=False, parse_special=False)
    for can_end in (True, False):
        assert ours.mask()[eog].all() == theirs.mask()[eog].all() == can_end
        ours.accept(left)
        theirs.accept(left)
    theirs.close()
