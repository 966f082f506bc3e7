"""Which tokens a grammar allows, and that no grammar makes that take long."""

import re
import time
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from worker.grammar.gbnf import automaton as automata
from worker.grammar.gbnf.automaton import Automaton
from worker.grammar.gbnf.matcher import Matcher, TokenGrammar
from worker.grammar.gbnf.parser import parse
from worker.grammar.gbnf.search_time import OWN_S, SHARED_S, SharedSearchTime
from worker.grammar.gbnf.symbols import GrammarError
from worker.grammar.gbnf.trie import TokenTrie

WORDS = [
    "the",
    "there",
    " the",
    "a" * 16,
    "-" * 64,
    "=" * 33,
    "é",
    "日本",
    "😀",
    "x\n",
    '{"',
    '": ',
]
PIECES = [b"", b"", *(bytes([i]) for i in range(256)), *(word.encode() for word in WORDS)]
PIECES += ["é".encode() * 2, b"a\xc3", b"\xa9b", b"</s>", b"a\0b"]
EOG = PIECES.index(b"</s>")
FIRST_BYTE = PIECES.index(b"\0")
TRIE = TokenTrie(PIECES)


def rules(text: str) -> TokenGrammar:
    return TokenGrammar(Automaton(parse(text)), TRIE, [EOG])


shared_rules = lru_cache(maxsize=4)(rules)


def matcher(text: str) -> Matcher:
    return Matcher(rules(text), PIECES, SharedSearchTime())


def follower(text: str) -> Matcher:
    """Follow a grammar with rules that were read once, as the tasks of a worker share them."""
    return Matcher(shared_rules(text), PIECES, SharedSearchTime())


def say(grammar: Matcher, text: str | bytes) -> None:
    """Accept a text byte by byte."""
    for byte in text.encode() if isinstance(text, str) else text:
        grammar.accept(FIRST_BYTE + byte)


def allowed(grammar: Matcher) -> set[bytes]:
    return {PIECES[token] for token in np.flatnonzero(grammar.mask())}


def test_the_tree_holds_every_token_once() -> None:
    seen = {0: b""}
    level = np.zeros(1, np.int32)
    while len(level):
        children, parents = TRIE.children(level)
        for child, parent in zip(children.tolist(), parents.tolist(), strict=True):
            seen[child] = seen[int(level[parent])] + bytes([int(TRIE.bytes[child])])
        level = children
    assert len(seen) == TRIE.n_nodes
    for token, piece in enumerate(PIECES):
        assert seen[int(TRIE.node_of[token])] == (piece if piece and 0 not in piece else b"")


def test_words_follow_letter_by_letter_or_at_once() -> None:
    grammar = matcher('root ::= "the" ("re" | " " .)?')
    assert allowed(grammar) == {b"t", b"the", b"there"}
    grammar.accept(PIECES.index(b"the"))
    assert allowed(grammar) == {b"r", b" ", b"</s>"}
    say(grammar, " ")
    assert {b"x", "é".encode(), b"\xc3"} < allowed(grammar)
    assert b"\xa9" not in allowed(grammar)
    grammar.accept(PIECES.index("é".encode()))
    assert allowed(grammar) == {b"</s>"}


def test_a_character_may_come_in_parts() -> None:
    grammar = matcher("root ::= [à-ï]+")
    assert b"\xc3" in allowed(grammar) and b"\xc2" not in allowed(grammar)
    say(grammar, b"\xc3")
    assert b"\xa9" in allowed(grammar)
    assert b"\xbf" not in allowed(grammar), "that would be ÿ"
    say(grammar, b"\xa9")
    assert EOG in np.flatnonzero(grammar.mask())


def test_a_token_within_a_character_is_refused_where_some_of_it_are_left_out() -> None:
    """As llama.cpp: it judges the range that a character may still come from as a whole."""
    assert b"\xc3" not in allowed(matcher("root ::= [^é]"))
    assert "日本".encode() in allowed(matcher("root ::= [^é]+"))


def test_tokens_may_be_named() -> None:
    the = PIECES.index(b"the")
    assert np.flatnonzero(matcher(f"root ::= <[{the}]>").mask()).tolist() == [the]
    others = matcher(f'root ::= !<[{the}]> "x"')
    assert not others.is_allowed(the) and others.is_allowed(PIECES.index(b"there"))
    others.accept(PIECES.index(b"there"))
    assert allowed(others) == {b"x"}


def test_the_mask_and_the_single_question_agree() -> None:
    grammar = matcher('root ::= ([a-z ]+ | "日"? [^a-zé]{2,3} | .)* "=" root?')
    for text in ("the ", "日x", "\n", "=", "é"):
        mask = grammar.mask()
        for token in range(len(PIECES)):
            assert mask[token] == grammar.is_allowed(token), PIECES[token]
        say(grammar, text)


def test_what_is_forgotten_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automata, "MAX_STATES", 3)
    grammar, other = matcher('root ::= "(" root ")" | [a-z]{0,9}'), None
    other = Matcher(grammar._rules, PIECES, SharedSearchTime())
    say(other, "((")
    say(grammar, "((((((abc")
    assert allowed(grammar) >= {b"d", b")"}
    say(grammar, ")))")
    assert allowed(grammar) == {b")"}
    say(other, "a))")
    assert allowed(other) == {b"</s>"}


@pytest.mark.slow
def test_large_states_are_forgotten_before_they_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last 50 letters before the end must begin with an a: each text is a state of its own."""
    monkeypatch.setattr(automata, "MAX_HELD", 200)
    text = 'root ::= [ab]* "a" [ab]{50} "c"'
    grammar, free = matcher(text), matcher(text)
    automaton = grammar._rules.automaton
    for letter in "abbab" * 25:
        say(grammar, letter)
        held = sum(len(state.places) for state in automaton._states.values())
        assert automaton._n_held == held <= 200
        monkeypatch.setattr(automata, "MAX_HELD", 1 << 30)
        say(free, letter)
        monkeypatch.setattr(automata, "MAX_HELD", 200)
        assert allowed(grammar) == allowed(free)


HOSTILE = {
    "tripled": ('root ::= "a" root | "a" root "b" | "a" root "c"', "a" * 32),
    "tripled in a token": ('root ::= "-" root | "-" root "b" | "-" root "c"', "-" * 64),
    "doubled in a token": ('root ::= ("-" | [-a])* "!"', "-" * 64),
    "optional": ("root ::= " + '"a"? ' * 5000 + '"b"', "aaaa"),
    "deep": ('root ::= "x" root "x"? | "x"', "x" * 200),
    "repeated": ('root ::= ((("a"{0,2000}){0,2000}){0,2000}){0,2000} "b"', "aaaa"),
    "many": ("root ::= " + " | ".join(f'"v{i:05d}" root' for i in range(15_000)), "v00001v"),
    "many sets": (
        "root ::= " + " | ".join(f"[{chr(200 + i)}-{chr(3000 + i)}] root" for i in range(10_000)),
        "ééé",
    ),
    "wide closure": (
        "\n".join(f'a{i} ::= a{i + 1} "x" | a{i + 1} "y"' for i in range(34))
        + '\na34 ::= "x"\nroot ::= a0',
        "x",
    ),
    "long chain": (
        "\n".join(f"a{i} ::= a{i + 1}" for i in range(25_000)) + '\na25000 ::= "x"\nroot ::= a0',
        "x",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_no_grammar_takes_long(name: str) -> None:
    """Fault H4, and worse: llama.cpp needs 3^64 steps to refuse one token of the second."""
    text, said = HOSTILE[name]
    start = time.process_time()
    try:
        grammar = matcher(text)
        for char in said:
            grammar.mask()
            say(grammar, char)
        grammar.mask()
    except GrammarError as error:
        assert re.search("ambiguous|too many ways", str(error))
    # Generous: what this must not take is hours.
    assert time.process_time() - start < 20 * (OWN_S + SHARED_S)


def test_a_task_ends_when_it_has_used_its_time_up() -> None:
    grammar = matcher('root ::= "a" root | "a" root "b" | "a" root "c"')
    with pytest.raises(GrammarError, match="too ambiguous"):
        say(grammar, "a" * 64)


def walk(grammar: Matcher, choices: Sequence[int]) -> str:
    """Let a matcher go where the numbers say; return the text."""
    text = b""
    for choice in choices:
        tokens = [token for token in np.flatnonzero(grammar.mask()).tolist() if token != EOG]
        if not tokens:
            break
        token = tokens[choice % len(tokens)]
        grammar.accept(token)
        text += PIECES[token]
    return text.decode(errors="replace")


@examples(50)
@given(st.lists(st.integers(0, 1000), max_size=12))
def test_whatever_is_allowed_belongs_to_a_text_of_the_grammar(choices: Sequence[int]) -> None:
    text = walk(matcher('root ::= ("the" | "there" | [a-f]+ | "=" | " ")*'), choices)
    assert re.match(r"(the|there|[a-f]+|=| )*(t|th|ther)?$", text), text
