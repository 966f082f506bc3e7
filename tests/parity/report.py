"""What the comparison with llama-server found, as a section of docs/using/compatibility.md.

It needs no server: `test_parity.py` fails unless every case is equal or decided as told here.
"""

from collections import Counter
from collections.abc import Iterator

from tests.parity.cases import Case
from tests.parity.decisions import DECISIONS, Decision
from tests.parity.setups import SETUPS

_TEXT = (
    "The same requests go to llama-server, built of the llama.cpp that is pinned here, and to a"
    " pool of one worker, both of one slot with the default model, or with its first layers, for"
    " vectors and templates. Equal is: the same status; every key of its answer, with the"
    " same JSON type; the same error message; where an answer can be"
    " the same to the letter (*text or values*), the same text, token, count or vector."
    " llama-server's answers are in `tests/parity/recorded/`, written by"
    " `tests/parity/record.py`; `tests/parity/test_parity.py` compares. Random requests of"
    " nineteen kinds are compared value by value, streams event by event, by"
    " `python -m tests.parity.random_requests`: generation, vectors, ranks, tokens, templates,"
    " pictures, adapters, wrong types, and sessions that meet what is left in slots and files;"
    " prompts of a folder of chat templates by"
    " `python -m tests.parity.random_requests.templates`."
)
_AREAS = {
    "/completion": "Completion",
    "/v1/completions": "OpenAI's completions",
    "/v1/chat/completions": "OpenAI's chat",
    "/v1/responses": "OpenAI's responses",
    "/v1/messages": "Anthropic's messages",
    "/tokenize": "Tokens",
    "/detokenize": "Tokens",
    "/apply-template": "Template and counts",
    "/chat/completions/input_tokens": "Template and counts",
    "/v1/chat/completions/input_tokens": "Template and counts",
    "/v1/responses/input_tokens": "Template and counts",
    "/v1/messages/count_tokens": "Template and counts",
    "/v1/embeddings": "Embeddings",
    "/embeddings": "Embeddings",
    "/embedding": "Embeddings",
}
_OTHER = "Everything else"


def area_of(case: Case) -> str:
    """Name the part of the API that a case is about."""
    return _AREAS.get(case.path, _OTHER)


def compared() -> list[str]:
    """Return the lines of the section."""
    cases = [case for setup in SETUPS.values() for case in setup.cases]
    equal = sum(case.name not in DECISIONS for case in cases)
    return [
        "\n## Compared with llama-server\n",
        f"{_TEXT}\n",
        f"{len(cases)} requests: {equal} equal, {len(cases) - equal} decided differences.\n",
        "| area | requests | equal | of these in text or values | decided |",
        "|---|---|---|---|---|",
        *_counts(cases),
        "\n| request | to | what differs | why |",
        "|---|---|---|---|",
        *_differences(cases),
    ]


def _counts(cases: list[Case]) -> Iterator[str]:
    areas = [area_of(case) for case in cases]
    total = Counter(areas)
    pairs = list(zip(areas, cases, strict=True))
    equal = Counter(area for area, case in pairs if case.name not in DECISIONS)
    close = Counter(
        area for area, case in pairs if case.name not in DECISIONS and (case.text or case.exact)
    )
    for area in dict.fromkeys([*_AREAS.values(), _OTHER]):
        decided = total[area] - equal[area]
        yield f"| {area} | {total[area]} | {equal[area]} | {close[area]} | {decided} |"


def _differences(cases: list[Case]) -> Iterator[str]:
    for case in cases:
        decision = DECISIONS.get(case.name)
        if decision is not None:
            yield f"| {case.name} | `{case.path}` | {_what(decision)} | {decision.why} |"


def _what(decision: Decision) -> str:
    if decision.status:
        return f"status {decision.status}"
    if decision.message:
        return "message"
    if decision.lacks:
        return ", ".join(f"`{lack}`" for lack in sorted(decision.lacks))
    return "value"
