"""The rules of one grammar: each name once, within bounds."""

from worker.grammar import rules
from worker.grammar.limits import MAX_GRAMMAR_CHARS, MAX_RULES, SchemaError


class RuleBook:
    """Named rules; `space` is always there."""

    def __init__(self) -> None:
        self._bodies = {"space": rules.SPACE}
        self._names: dict[tuple[str, str], str] = {}
        self._next: dict[str, int] = {}
        """Name -> the next number for another rule of that name; those below are taken."""
        self._numbers: dict[str, tuple[str, int]] = {}
        """Rule -> its name before it got a number, and that number."""
        self._n_chars = 0

    def __contains__(self, name: str) -> bool:
        return name in self._bodies

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def is_half_full(self) -> bool:
        """Whether half of a grammar's largest size, or of its rules, is used."""
        return 2 * self._n_chars > MAX_GRAMMAR_CHARS or 2 * len(self) > MAX_RULES

    def add(self, name: str, body: str) -> str:
        """Add a rule; a name with another body gets a number."""
        name = rules.rule_name(name)
        known = self._names.get((name, body))
        if known is not None and self._bodies.get(known) == body:
            return known
        key, i = name, self._next.get(name, 0)
        while self._bodies.get(key, body) != body:
            key = f"{name}{i}"
            i += 1
        if key not in self._bodies:
            self._put(key, body)
            if key != name:
                self._numbers[key] = name, i - 1
        if key != name:
            self._next[name] = i
        self._names[name, body] = key
        return key

    def _put(self, key: str, body: str) -> None:
        self._n_chars += len(_line(key, body))
        if len(self._bodies) >= MAX_RULES:
            raise SchemaError(f"the grammar needs more than {MAX_RULES} rules")
        if self._n_chars > MAX_GRAMMAR_CHARS:
            raise SchemaError(f"the grammar is longer than {MAX_GRAMMAR_CHARS} characters")
        self._bodies[key] = body

    def builtin(self, name: str, key: str | None = None) -> str:
        """Add a built-in rule, under another name if given, with all that it needs."""
        body, needed = rules.PRIMITIVES[name]
        found = self.add(key or name, body)
        for other in needed:
            if other not in self._bodies:
                self.builtin(other)
        return found

    def forget(self, n_rules: int) -> None:
        """Drop all rules after the first `n_rules`."""
        while len(self._bodies) > n_rules:
            key, body = self._bodies.popitem()
            self._n_chars -= len(_line(key, body))
            self._next.pop(key, None)
            if key in self._numbers:
                name, number = self._numbers.pop(key)
                self._next[name] = min(number, self._next.get(name, number))

    def text(self) -> str:
        """Write all rules, sorted by name."""
        return "".join(_line(name, body) for name, body in sorted(self._bodies.items()))


def _line(name: str, body: str) -> str:
    return f"{name} ::= {body}\n"
