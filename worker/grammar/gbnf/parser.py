"""Reads GBNF texts as llama.cpp does (src/llama-grammar.cpp), in linear time and within bounds.

Deep nesting, repetitions that multiply out and bounds in the wrong order are refused here:
llama.cpp would recurse, expand them or never end. Its parser also writes refused texts to standard
error, where a client could forge log lines.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from worker.grammar.gbnf.recursion import check_recursion
from worker.grammar.gbnf.symbols import CharSet, Grammar, GrammarError, Symbol, SymbolKind

MAX_CHARS = 512 * 1024
"""Of a text; 0.5 us each."""
MAX_DEPTH = 200
MAX_SYMBOLS = 250_000
"""After repetitions are written out; each costs some 10 bytes and 1 us."""
MAX_REPEAT = 2000
"""llama.cpp's: a larger upper bound is none, a larger lower one is refused."""
MAX_TOKEN_CHARS = 256
"""Of a token that is named by its text."""

FindToken = Callable[[str], int | None]
"""Returns the token that a text is; None if it is none, or several."""

_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_NUMBER = re.compile(r"[0-9]+")
_CHAR = re.compile(
    r"""\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([trn\\"\[\]-]))|([^\\])""",
    re.DOTALL,
)
_PLAIN = re.compile(r'[^"\\]+')
"""Characters of a literal that stand for themselves."""
_NAMED = {"t": "\t", "r": "\r", "n": "\n"}


def parse(text: str, find_token: FindToken = lambda _: None) -> Grammar:
    """Read a grammar; raises `GrammarError`."""
    if len(text) > MAX_CHARS:
        raise GrammarError(f"longer than {MAX_CHARS} characters")
    text = text.replace("\0", "").encode(errors="replace").decode()
    grammar = _Parser(text, find_token).read()
    check_recursion(grammar)
    return grammar


@dataclass(slots=True)
class _Group:
    """A rule, or the part of one that stands in parentheses, while it is read."""

    rule: int
    alternatives: list[list[Symbol]] = field(default_factory=lambda: [[]])
    last: int = 0
    """Where the last symbol begins in the last alternative: a repetition repeats it."""


class _Parser:
    """Walks over the text once; parentheses are kept on a list, not on the stack."""

    def __init__(self, text: str, find_token: FindToken) -> None:
        self._text = text
        self._find_token = find_token
        self._at = 0
        self._rules: dict[int, list[list[Symbol]]] = {}
        self._names: dict[str, int] = {}
        self._n_rules = self._n_symbols = 0
        self._sets: dict[CharSet, int] = {}
        self._letters: dict[int, Symbol] = {}
        self._groups: list[_Group] = []
        readers: dict[str, Callable[[], None]] = dict.fromkeys("*+?{", self._repetition)
        readers |= {'"': self._literal, "[": self._class, ".": self._any, "<": self._token}
        readers |= {"!": self._token, "(": self._open, ")": self._close, "|": self._alternative}
        self._readers = readers

    def read(self) -> Grammar:
        """Read all rules."""
        self._skip(_SPACE)
        while self._at < len(self._text):
            self._rule()
        root = self._names.get("root")
        if root is None:
            raise GrammarError("there is no rule 'root'")
        for name, number in self._names.items():
            if number not in self._rules:
                raise GrammarError(f"the rule '{name[:64]}' is not defined")
        grammar = Grammar(sets=list(self._sets), root=root)
        for number in range(self._n_rules):
            grammar.add(self._rules[number])
        return grammar

    def _rule(self) -> None:
        rule = self._named(self._take(_NAME, "a name"))
        self._skip(_BLANK)
        self._expect("::=")
        self._skip(_SPACE)
        self._groups = [_Group(rule)]
        self._body()
        if len(self._groups) > 1:
            raise self._error("expecting ')'")
        self._rules[rule] = self._groups[0].alternatives
        if self._at < len(self._text) and self._text[self._at] not in "\r\n":
            raise self._error("expecting a line break")
        self._skip(_SPACE)

    def _body(self) -> None:
        """Read alternatives up to what cannot belong to them."""
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in self._readers and (char != ")" or len(self._groups) > 1):
                self._readers[char]()
            elif found := _NAME.match(self._text, self._at):
                self._at = found.end()
                self._put([Symbol(SymbolKind.RULE, self._named(found[0]))])
            else:
                return
            self._skip(_SPACE if len(self._groups) > 1 else _BLANK)

    # ---- symbols ------------------------------------------------------------------------------

    def _put(self, symbols: list[Symbol]) -> None:
        """Add what a repetition that follows would repeat."""
        group = self._groups[-1]
        sequence = group.alternatives[-1]
        group.last = len(sequence)
        self._count(len(symbols))
        sequence += symbols

    def _count(self, n: int) -> None:
        self._n_symbols += n
        if self._n_symbols > MAX_SYMBOLS:
            raise GrammarError(f"more than {MAX_SYMBOLS} symbols, repetitions written out")

    def _named(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = self._new_rule()
        return self._names[name]

    def _new_rule(self) -> int:
        self._n_rules += 1
        self._count(1)
        return self._n_rules - 1

    def _char_set(self, found: CharSet) -> Symbol:
        return Symbol(SymbolKind.CHARS, self._sets.setdefault(found, len(self._sets)))

    def _literal(self) -> None:
        self._at += 1
        symbols: list[Symbol] = []
        while self._next() != '"':
            if plain := _PLAIN.match(self._text, self._at):
                self._at = plain.end()
                symbols += map(self._letter, map(ord, plain[0]))
            else:
                symbols.append(self._letter(self._char()))
        self._at += 1
        self._put(symbols)

    def _letter(self, char: int) -> Symbol:
        found = self._letters.get(char)
        if found is None:
            found = self._letters[char] = self._char_set(CharSet(((char, char),)))
        return found

    def _class(self) -> None:
        self._at += 1
        is_negated = self._next() == "^"
        self._at += is_negated
        ranges = []
        while self._next() != "]":
            low = high = self._char()
            if self._text.startswith("-", self._at) and self._next(1) != "]":
                self._at += 1
                high = self._char()
            ranges.append((low, high))
        self._at += 1
        self._count(len(ranges))
        # An empty set takes no character: llama.cpp reads nothing there.
        self._put([self._char_set(CharSet.of(ranges, is_negated=is_negated))] if ranges else [])

    def _any(self) -> None:
        self._at += 1
        self._put([self._char_set(CharSet((), is_negated=True))])

    def _char(self) -> int:
        found = _CHAR.match(self._text, self._at)
        if found is None:
            raise self._error("unknown escape")
        self._at = found.end()
        digits = found[1] or found[2] or found[3]
        return int(digits, 16) if digits else ord(_NAMED.get(found[4], found[4] or found[5]))

    def _token(self) -> None:
        start = self._at
        is_negated = self._text[start] == "!"
        self._at += is_negated
        self._expect("<")
        end = self._text.find(">", self._at, self._at + MAX_TOKEN_CHARS)
        if end < 0:
            raise self._error("expecting '>'")
        inside = self._text[self._at : end]
        self._at = end + 1
        kind = SymbolKind.OTHER_TOKEN if is_negated else SymbolKind.TOKEN
        self._put([Symbol(kind, self._token_id(inside))])

    def _token_id(self, inside: str) -> int:
        if inside.startswith("["):
            digits = inside[1:-1]
            if not inside.endswith("]") or not re.fullmatch("[0-9]{1,10}", digits):
                raise self._error("expecting '<[number]>'")
            return int(digits)
        found = self._find_token(f"<{inside}>")
        if found is None:
            raise self._error("this is not one token")
        return found

    # ---- structure ----------------------------------------------------------------------------

    def _alternative(self) -> None:
        self._at += 1
        self._skip(_SPACE)
        group = self._groups[-1]
        group.alternatives.append([])
        group.last = 0
        self._count(1)

    def _open(self) -> None:
        self._at += 1
        if len(self._groups) > MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH}")
        self._groups.append(_Group(self._new_rule()))

    def _close(self) -> None:
        self._at += 1
        group = self._groups.pop()
        self._rules[group.rule] = group.alternatives
        self._put([Symbol(SymbolKind.RULE, group.rule)])

    def _repetition(self) -> None:
        """Rewrite `S{m,n}` as m times S and n - m optional ones, each within the one before."""
        char = self._text[self._at]
        self._at += 1
        bounds: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        least, most = bounds[char] if char in bounds else self._bounds()
        group = self._groups[-1]
        sequence = group.alternatives[-1]
        repeated = sequence[group.last :]
        if not repeated:
            raise self._error("nothing to repeat")
        n_optional = 1 if most is None else most - least
        self._count(len(repeated) * (least + n_optional))
        del sequence[group.last :]
        sequence += repeated * least
        following: list[Symbol] = []
        for _ in range(n_optional):
            number = self._new_rule()
            again = [Symbol(SymbolKind.RULE, number)] if most is None else following
            self._rules[number] = [[*repeated, *again], []]
            following = [Symbol(SymbolKind.RULE, number)]
        sequence += following

    def _bounds(self) -> tuple[int, int | None]:
        """Read what stands in braces."""
        space = _SPACE if len(self._groups) > 1 else _BLANK
        self._skip(space)
        least = most = self._number()
        self._skip(space)
        unlimited = False
        if self._text.startswith(",", self._at):
            self._at += 1
            self._skip(space)
            unlimited = _NUMBER.match(self._text, self._at) is None
            most = least if unlimited else self._number()
            self._skip(space)
        self._expect("}")
        if least > MAX_REPEAT:
            raise self._error(f"more than {MAX_REPEAT} repetitions")
        if most < least:
            raise self._error("the bounds of the repetition are in the wrong order")
        return least, None if unlimited or most > MAX_REPEAT else most

    def _number(self) -> int:
        # int() refuses thousands of digits, and five are too many already.
        return int(self._take(_NUMBER, "a number").lstrip("0")[:5] or "0")

    # ---- text ---------------------------------------------------------------------------------

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _take(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._error(f"expecting {what}")
        self._at = found.end()
        return found[0]

    def _expect(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            raise self._error(f"expecting '{text}'")
        self._at += len(text)

    def _next(self, ahead: int = 0) -> str:
        if self._at + ahead >= len(self._text):
            raise self._error("unexpected end")
        return self._text[self._at + ahead]

    def _error(self, problem: str) -> GrammarError:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - self._text.rfind("\n", 0, self._at)
        return GrammarError(f"{problem} in line {line}, column {column}")
