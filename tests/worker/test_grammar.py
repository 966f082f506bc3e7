"""The bounds that stand before llama.cpp's grammar parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from worker.llama.grammar import MAX_DEPTH, check_grammar

GOOD = [
    'root ::= "yes" | "no"',
    "root ::= [a-z]+ # a comment with (((",
    'root ::= "(((((" ws\nws ::= [ \\t\\]]*',
    'root ::= ("a" | "b"){2,10} item{3} item{,4} item{5,}\nitem ::= "x"',
    "root ::= " + "(" * MAX_DEPTH + '"a"' + ")" * MAX_DEPTH,
]

BAD = [
    "root ::= " + "(" * 200_000,
    "root ::= " + "(" * (MAX_DEPTH + 1) + '"a"' + ")" * (MAX_DEPTH + 1),
    'root ::= (("a"{1000}){1000}){1000}',
    'root ::= "a"{99999}',
    'root ::= "a"{99999999999999999999}',
    "root ::= " + '"a" ' * 300_000,
]


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_ordinary_grammars_pass(text: str) -> None:
    check_grammar(text)


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_would_end_the_process_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Failed to parse grammar"):
        check_grammar(text)


@given(st.text(alphabet='rot:= "[](){}|*+?#\\\n,0129az', max_size=80))
def test_the_check_itself_never_fails(text: str) -> None:
    try:
        check_grammar(text)
    except InvalidRequest as error:
        assert error.param == "grammar"
