"""Reading GBNF: what llama.cpp takes is taken, what would harm it is refused in linear time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.grammar.gbnf.parser import MAX_DEPTH, MAX_REPEAT, parse
from worker.grammar.gbnf.symbols import CharSet, GrammarError

GOOD = [
    'root ::= "yes" | "no"',
    "root ::= [a-z]+ # a comment with (((",
    'root ::= "(((((" ws\nws ::= [ \\t\\]]*',
    'root ::= ("a" | "b"){2,10} item{3} item{0,4} item{5,}\nitem ::= "x"',
    "root ::= " + "(" * MAX_DEPTH + '"a"' + ")" * MAX_DEPTH,
    'root ::= (\n  "a" # first\n  | "b"\n)\n\n',
    "root ::= |",
    'root ::= [] [^] "" \'x\nx ::= .'.replace("'", ""),
    'root ::= "\\x41\\u00e9\\U0001F600\\n\\t\\r\\"\\\\\\[\\]\\-"',
    'root ::= ("a"?)*',
    'root ::= root-2\nroot-2 ::= "a"{0,99999}',
    'root ::= "a"\nroot ::= "b"',
    "root ::= <[7]> !<[8]>",
]

BAD = {
    "root ::= " + "(" * 200_000: "nested deeper",
    "root ::= " + "(" * (MAX_DEPTH + 1) + '"a"' + ")" * (MAX_DEPTH + 1): "nested deeper",
    'root ::= "0123456789"{2000} ' * 1 + '"0123456789"{2000} ' * 12: "more than 250000 symbols",
    f'root ::= "a"{{{MAX_REPEAT + 1}}}': "repetitions",
    'root ::= "a"{99999999999999999999}': "repetitions",
    "root ::= " + '"a" ' * 300_000: "longer than",
    'root ::= "a"{5,2}': "wrong order",
    'root ::= "a"{,4}': "expecting a number",
    "root ::= *": "nothing to repeat",
    'root ::= ""*': "nothing to repeat",
    "root ::= (": r"expecting '\)'",
    "root ::= )": "line break",
    "root ::= nobody": "not defined",
    "other ::= [a]": "no rule 'root'",
    "": "no rule 'root'",
    'root ::= "\\q"': "unknown escape in line 1",
    'root ::= "\\x4"': "unknown escape",
    'root ::= "a': "unexpected end",
    "root ::= [a-": "unexpected end",
    "root ::= <a b>": "not one token",
    "root ::= <[99999999999]>": "expecting",
    f"root ::= <{'a' * 1000}>": "expecting '>'",
    'root = "a"': "expecting '::='",
}


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_ordinary_grammars_are_read(text: str) -> None:
    assert parse(text).kinds


@pytest.mark.parametrize(("text", "problem"), BAD.items(), ids=range(len(BAD)))
def test_what_is_no_grammar_or_too_large_is_refused(text: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=problem):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        'root ::= root "a" | "b"',
        'root ::= a\na ::= b "x"\nb ::= a "y" | "z"',
        'root ::= empty root "a" | "b"\nempty ::= ""',
        'root ::= far root "a" | "b"\nfar ::= near\nnear ::= ""',
        'root ::= ("a"? root "b")?',
    ],
    ids=range(5),
)
def test_left_recursion_is_refused(text: str) -> None:
    with pytest.raises(GrammarError, match="left recursion"):
        parse(text)


def test_what_only_looks_like_left_recursion_is_taken() -> None:
    """There is an end to what these may begin with."""
    for text in (
        'root ::= "a" root | ""',
        "root ::= (ws item?)*\nws ::= [ ]*\nitem ::= [a]",
        'root ::= root | "a"',
    ):
        parse(text)


@pytest.mark.slow
def test_a_chain_that_doubles_with_each_level_is_read_at_once() -> None:
    """Fault C2: llama.cpp takes hours over 40 of these levels; here 20,000 are read in a second."""
    levels = "\n".join(f"a{i} ::= a{i + 1} | a{i + 1}" for i in range(20_000))
    parse(f'root ::= a0\n{levels}\na20000 ::= "x"')


def test_a_named_token_is_looked_up() -> None:
    asked = []

    def find(text: str) -> int | None:
        asked.append(text)
        return 9

    assert 9 in parse("root ::= <|im_end|>", find).values
    assert asked == ["<|im_end|>"]


def test_sets_of_characters_are_what_their_ranges_say() -> None:
    one = CharSet.of([(98, 100), (97, 97), (300, 200), (120, 122), (99, 105)])
    assert one.ranges == ((97, 105), (120, 122))
    assert [one.covers(*r) for r in ((97, 105), (98, 99), (96, 98), (106, 119))] == [
        True,
        True,
        None,
        False,
    ]
    other = one._replace(is_negated=True)
    assert [other.covers(*r) for r in ((97, 105), (96, 98), (106, 119))] == [False, None, True]
    assert other.holds(96) and not other.holds(97)


@given(st.text(alphabet='rot:= "[](){}|*+?#\\\n,0129az<>!.-^', max_size=80))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        parse(f"root ::= {text}")
    except GrammarError as error:
        assert len(str(error)) < 200
