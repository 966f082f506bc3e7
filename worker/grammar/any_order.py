"""Rules that let the arguments of a tool come in any order."""

from collections.abc import Mapping, Sequence

from worker.grammar.json_schema.builder import GrammarBuilder

_MAX_REQUIRED = 6
"""Required arguments in any order: each more doubles the rules. Source: COMMON_CHAT_MAX_PERMUTE of
llama.cpp (common/chat-peg-parser.h)."""


def in_any_order(
    builder: GrammarBuilder, required: Sequence[str], optional: Sequence[str], separator: str = ""
) -> str:
    """Write each required argument once, in any order, and optional ones anywhere between them.

    More than `_MAX_REQUIRED` of them come in the given order, and so do all once half of the
    grammar's size is used. The rules' names are short: they are written once for each order.
    """
    choice = others = ""
    if optional:
        choice = builder.add_rule("optional", " | ".join(optional))
        others = builder.add_rule("optionals", f"({separator}{choice})*")
    if len(required) > _MAX_REQUIRED or (required and builder.is_half_full):
        required = [f" {others} {separator}".join(required)]
    short = [builder.add_rule("arg", rule) for rule in required]
    rests = {0: others}
    for left in range(1, 1 << len(short)):
        ways = _ways(short, left, rests, separator)
        rests[left] = builder.add_rule("args", f"{others} ({' | '.join(ways)})".strip())
    everything = (1 << len(short)) - 1
    ways = _ways(short, everything, rests, "")
    if optional:
        ways.append(f"{choice} {rests[everything]}")
    return f"({' | '.join(ways)})" + ("" if required else "?") if ways else ""


def _ways(rules: Sequence[str], left: int, rests: Mapping[int, str], before: str) -> list[str]:
    """Write how arguments go on; `left` has a bit for each required one that is still to come."""
    return [
        f"{before}{rule} {rests[left ^ 1 << i]}".strip()
        for i, rule in enumerate(rules)
        if left >> i & 1
    ]
