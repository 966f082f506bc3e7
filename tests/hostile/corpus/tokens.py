"""Token ids beyond the vocabulary, wherever ids are taken."""

from typing import Any

from tests.hostile.case import CaseList, HostileCase, Target


def cases(target: Target) -> list[HostileCase]:
    """Return ids around every boundary at every place."""
    found = CaseList("tokens")
    ids: dict[str, Any] = {
        "-1": -1,
        "n_vocab": target.n_vocab,
        "2**31": 2**31,
        "-2**31": -(2**31),
        "2**63": 2**63,
        "2**64": 2**64,
        "10**400": 10**400,
        "1.5": 1.5,
        "1e300": 1e300,
        "true": True,
        "null": None,
        "list": [1],
        "object": {"id": 1},
    }
    for label, token in ids.items():
        for place, (path, body) in _places(token).items():
            found.post(f"{label} as {place}", path, body)
        found.post(f"{label} as a key", "/completion", _biased({str(token): 1}))
    found.post("minus zero", "/completion", _biased({"-0": 1, "007": 1, "+5": 1, "1_000": 1}))
    found.post("all ids forbidden", "/completion", lambda: _biased(_all(target, False)))
    found.post("all ids at -1e300", "/completion", lambda: _biased(_all(target, -1e300)))
    found.post("two ids at 1e300", "/completion", _biased({"5": 1e300, "6": 1e300}))
    found.post("one id for ever", "/completion", _biased({"5": 1e300}) | {"n_predict": 64})
    words = {f"a long text of many tokens, number {i}": 1 for i in range(8000)}
    found.post("thousands of long texts", "/completion", lambda: _biased(words))
    return found.cases


def _all(target: Target, bias: Any) -> list[Any]:
    return [[token, bias] for token in range(min(target.n_vocab, 8000))]


def _biased(bias: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "n_predict": 2, "logit_bias": bias}


def _places(token: Any) -> dict[str, tuple[str, Any]]:
    return {
        "prompt": ("/completion", {"prompt": [token], "n_predict": 2}),
        "mixed prompt": ("/completion", {"prompt": ["Hi", token, "x"], "n_predict": 2}),
        "prompts": ("/completion", {"prompt": [[token], [1]], "n_predict": 2}),
        "bias": ("/completion", _biased([[token, 1]])),
        "penalty_prompt": (
            "/completion",
            {"prompt": "Hi", "n_predict": 2, "penalty_prompt": [token]},
        ),
        "openai prompt": ("/v1/completions", {"prompt": [token], "max_tokens": 2}),
        "detokenize": ("/detokenize", {"tokens": [token]}),
        "tokenize": ("/tokenize", {"content": [token, "x"]}),
        "embedding": ("/v1/embeddings", {"input": [token]}),
        "embeddings": ("/v1/embeddings", {"input": [[token]]}),
        "infill": ("/infill", {"input_prefix": [token], "input_suffix": "", "n_predict": 2}),
    }
