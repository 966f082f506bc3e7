"""Left recursion: a rule that needs itself, and something after it, before it takes a character.

Such a rule expands without end. llama.cpp looks for it, too, but in time that doubles with every
level, and it misses rules that are empty only through other rules.
"""

from collections.abc import Iterator

from worker.grammar.gbnf.symbols import Grammar, GrammarError, SymbolKind


def check_recursion(grammar: Grammar) -> None:
    """Raise `GrammarError` for left recursion; linear in the size of the grammar."""
    empty = _may_be_empty(grammar)
    edges = [list(_begins(grammar, starts, empty)) for starts in grammar.alternatives]
    component = _components([[target for target, _ in found] for found in edges])
    for rule, found in enumerate(edges):
        for target, has_more in found:
            if has_more and component[rule] == component[target]:
                raise GrammarError("left recursion: a rule begins with itself")


def _may_be_empty(grammar: Grammar) -> list[bool]:
    """Tell of each rule whether it matches the empty text, by whatever way."""
    empty = [False] * len(grammar.alternatives)
    n_missing: dict[int, int] = {}
    """Alternative -> rules in it that are not known to be empty."""
    users: list[list[tuple[int, int]]] = [[] for _ in empty]
    ready: list[int] = []
    for rule, starts in enumerate(grammar.alternatives):
        for start in starts:
            names = _only_rules(grammar, start)
            if names is None:
                continue
            n_missing[start] = len(names)
            for name in names:
                users[name].append((rule, start))
            if not names and not empty[rule]:
                empty[rule] = True
                ready.append(rule)
    while ready:
        for rule, start in users[ready.pop()]:
            n_missing[start] -= 1
            if not n_missing[start] and not empty[rule]:
                empty[rule] = True
                ready.append(rule)
    return empty


def _only_rules(grammar: Grammar, start: int) -> list[int] | None:
    """Return the rules of an alternative; None if it has anything else."""
    names = []
    at = start
    while grammar.kinds[at] == SymbolKind.RULE:
        names.append(grammar.values[at])
        at += 1
    return names if grammar.kinds[at] == SymbolKind.END else None


def _begins(grammar: Grammar, starts: list[int], empty: list[bool]) -> Iterator[tuple[int, bool]]:
    """Walk through the rules that a rule may begin with, and whether something follows them."""
    for start in starts:
        at = start
        while grammar.kinds[at] == SymbolKind.RULE:
            target = grammar.values[at]
            at += 1
            yield target, grammar.kinds[at] != SymbolKind.END
            if not empty[target]:
                break


def _components(edges: list[list[int]]) -> list[int]:
    """Number the strongly connected components (Tarjan's algorithm, without recursion)."""
    order = [-1] * len(edges)
    low = [0] * len(edges)
    component = [-1] * len(edges)
    stack: list[int] = []
    n_seen = n_components = 0
    for root in range(len(edges)):
        path = [(root, iter(edges[root]))] if order[root] < 0 else []
        while path:
            node, rest = path[-1]
            if order[node] < 0:
                order[node] = low[node] = n_seen
                n_seen += 1
                stack.append(node)
            target = next(rest, None)
            if target is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == order[node]:
                    while component[node] < 0:
                        component[stack.pop()] = n_components
                    n_components += 1
            elif order[target] < 0:
                path.append((target, iter(edges[target])))
            elif component[target] < 0:
                low[node] = min(low[node], order[target])
    return component
