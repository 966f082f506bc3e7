"""Grammars whose cost grows faster than their text."""

from tests.hostile.case import CaseList, HostileCase, Target


def cases(target: Target) -> list[HostileCase]:
    """Return grammars for `/completion`, and some of them for a stream whose client leaves."""
    found = CaseList("grammars")
    for label, text in _grammars().items():
        found.complete(label, grammar=text, n_predict=6)
    for label in ("ambiguous", "doubling rules 40", "wide repetition"):
        fields = {"grammar": _grammars()[label], "stream": True, "n_predict": 50}
        found.post(
            f"{label}, client leaves",
            "/completion",
            {"prompt": "Hi"} | fields,
            hangs_up_s=0.05,
        )
    lazy = {
        "grammar": 'root ::= "x"',
        "grammar_lazy": True,
        "grammar_triggers": [{"type": 2, "value": "(a+)+$"}],
    }
    found.complete("lazy with a slow trigger", **lazy)
    found.complete("the longest text", grammar="root ::= " + '"a" ' * 16_000)
    found.complete("longer than allowed", grammar="root ::= " + '"a" ' * 100_000)
    return found.cases


def _grammars() -> dict[str, str]:
    return {
        "doubling rules 40": _doubling(40),
        "doubling rules 2000": _doubling(2000),
        "doubling and empty": "".join(f"a{i} ::= a{i + 1} a{i + 1}\n" for i in range(40))
        + 'a40 ::= ""\nroot ::= a0 "x"',
        "left recursion": 'root ::= root "a" | "b"',
        "indirect left recursion": "".join(f"a{i} ::= a{(i + 1) % 500}\n" for i in range(500))
        + "root ::= a0",
        "hidden left recursion": 'root ::= e root "a"\ne ::= "" | "b"',
        "ambiguous": 'root ::= "a" root | "a" root "b" | "a" root "c" | [a-z] root',
        "ambiguous star": "root ::= ([a-z]* [a-z]* [a-z]* [a-z]*)*",
        "empty loop": 'root ::= (""*)*',
        "empty star of star": "root ::= ((([a]*)*)*)*",
        "wide repetition": 'root ::= ("a"{0,2000}){0,2000}',
        "huge repetition": 'root ::= "a"{1000000000}',
        "huge upper bound": 'root ::= "a"{0,18446744073709551616}',
        "negative repetition": 'root ::= "a"{-1,2}',
        "nested repetition": 'root ::= ((((("a"{9}){9}){9}){9}){9}){9}',
        "deep groups": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
        "deep rules": "".join(f"a{i} ::= a{i + 1} \n" for i in range(10_000))
        + 'a10000 ::= "x"\nroot ::= a0',
        "many rules": "root ::= a0\n" + "".join(f'a{i} ::= "x"\n' for i in range(4000)),
        "many choices": "root ::= " + " | ".join(f'"{i}"' for i in range(8000)),
        "many ranges": "root ::= [" + "a-z" * 15_000 + "]",
        "undefined rule": "root ::= nothing",
        "no root": 'a ::= "b"',
        "open string": 'root ::= "',
        "open class": "root ::= [a-",
        "bad escape": 'root ::= "\\x"',
        "beyond Unicode": 'root ::= "\\UFFFFFFFF"',
        "surrogate": 'root ::= "\\uD800"',
        "token": "root ::= <[99999999]>",
        "token name": "root ::= <|nothing|>",
        "any character": "root ::= .*",
        "negated all": "root ::= [^\\x00-\\U0010FFFF]+",
        "reverse range": "root ::= [z-a]",
        "NUL": 'root ::= "a\0b"',
        "only white space": "   \n\t ",
        "comment": "# only a comment",
        "format string": "root ::= %s%s%s%n",
    }


def _doubling(levels: int) -> str:
    rules = "".join(f"a{i} ::= a{i + 1} | a{i + 1}\n" for i in range(levels))
    return f'root ::= a0\n{rules}a{levels} ::= "x"'
