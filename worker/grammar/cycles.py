"""References that lead back to themselves before any text is written: no grammar can begin there.

A list whose items are such lists is fine; a schema that is itself or null is not.
"""

from collections.abc import Iterator, Mapping

from worker.grammar import nodes as n
from worker.grammar.limits import SchemaError


def check_cycles(refs: Mapping[str, n.Node]) -> None:
    """Raise `SchemaError` for the first reference that begins with itself."""
    finished: set[str] = set()
    for start in refs:
        path = {start: _first(refs[start])}
        while path:
            ref, rest = next(reversed(path.items()))
            following = next(rest, None)
            if following is None:
                finished.add(ref)
                path.popitem()
            elif following in path:
                raise SchemaError(f"$ref {following} refers to itself without end")
            elif following not in finished:
                path[following] = _first(refs[following])


def _first(node: n.Node) -> Iterator[str]:
    """Walk through the references that a text of this node may begin with."""
    waiting = [node]
    while waiting:
        visited = waiting.pop()
        if isinstance(visited, n.Ref):
            yield visited.ref
        elif isinstance(visited, n.AnyOf | n.AllOf):
            waiting += visited.children
