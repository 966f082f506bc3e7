"""Values inside values, as deep as bytes allow, at every place that takes a value."""

from typing import Any

from tests.hostile.case import CaseList, HostileCase, Target

_DEPTHS = (100, 127, 1000, 100_000)


def cases(target: Target) -> list[HostileCase]:
    """Return arrays and objects of several depths in several fields."""
    found = CaseList("nesting")
    for depth in _DEPTHS:
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            inner = b"" if opening == b"[" else b"1"
            value = opening * depth + inner + closing * depth
            label = f"{depth} {opening.decode()}"
            found.post(f"body {label}", "/completion", value)
            for field in ("prompt", "stop", "logit_bias", "samplers", "lora", "json_schema"):
                body = b'{"n_predict": 2, "prompt": "Hi", "%s": %s}' % (field.encode(), value)
                found.post(f"{field} {label}", "/completion", body)
            for path, body in _BODIES.items():
                found.post(f"{path} {label}", path, body.replace(b"@", value))
    _unclosed(found)
    return found.cases


_BODIES: dict[str, bytes] = {
    "/v1/chat/completions": b'{"max_tokens": 2, "messages": [{"role": "user", "content": @}]}',
    "/v1/messages": b'{"max_tokens": 2, "messages": [{"role": "user", "content": @}]}',
    "/v1/responses": b'{"max_output_tokens": 2, "input": @}',
    "/v1/embeddings": b'{"input": @}',
    "/tokenize": b'{"content": @}',
    "/detokenize": b'{"tokens": @}',
    "/infill": b'{"input_prefix": @}',
    "/lora-adapters": b"@",
    "/apply-template": b'{"messages": [{"role": "user", "content": "x", "extra": @}]}',
    "/props": b'{"default": @}',
}


def _unclosed(found: CaseList) -> None:
    bodies: dict[str, Any] = {
        "brackets": b"[" * 1_000_000,
        "braces": b'{"a":' * 200_000,
        "a string": b'{"prompt": "' + b"x" * 100_000,
        "an escape": b'{"prompt": "\\',
        "half a pair": b'{"prompt": "\\ud83d',
    }
    for label, body in bodies.items():
        found.post(f"unclosed {label}", "/completion", body)
