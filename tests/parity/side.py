"""Requests that generate nothing, keep to a schema, or are refused by a plain model."""

from typing import Any

from tests.parity.cases import CHAT, Case, chat, completion

SYSTEM = {"role": "system", "content": "Be brief."}
TURNS = [SYSTEM, *CHAT, {"role": "assistant", "content": "Blue."}, {"role": "user", "content": "?"}]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "n": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


def _exact(name: str, path: str, body: Any = None, method: str = "POST") -> Case:
    return Case(name=name, path=path, body=body, method=method, exact=True)


def _schema(name: str, schema: Any, **body: Any) -> Case:
    return completion(f"schema {name}", json_schema=schema, temperature=0, n_predict=40, **body)


def _format(name: str, form: Any, text: bool = True) -> Case:
    return chat(f"format {name}", text=text, response_format=form, temperature=0, max_tokens=40)


SCHEMAS: tuple[Case, ...] = (
    _schema("object", CITY, prompt="A city as JSON: "),
    _schema("choice", {"enum": ["red", "blue"]}, prompt="The sea is "),
    _schema("array", {"type": "array", "items": {"type": "integer"}, "maxItems": 3}),
    _schema("pattern", {"type": "string", "pattern": "^[a-c]{2,4}$"}),
    _schema("reference", {"$ref": "#/$defs/x", "$defs": {"x": {"type": "boolean"}}}),
    Case(name="schema number", path="/completion", body={"prompt": "Hi", "json_schema": 7}),
    Case(
        name="schema unknown type",
        path="/completion",
        body={"prompt": "Hi", "json_schema": {"type": "sound"}},
    ),
    Case(
        name="schema and grammar",
        path="/completion",
        body={"prompt": "Hi", "json_schema": {}, "grammar": "root ::= [a-z]"},
    ),
    _format("text", {"type": "text"}),
    _format("json_object", {"type": "json_object"}),
    _format("json_object with schema", {"type": "json_object", "schema": CITY}),
    _format("json_schema", {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}),
    _format("json_schema bare", {"type": "json_schema"}, text=False),
    _format("string", "json", text=False),
    chat("chat json_schema field", json_schema=CITY, temperature=0, max_tokens=40),
    chat("chat grammar", grammar='root ::= "yes" | "no"', temperature=0),
)

SIDE: tuple[Case, ...] = (
    *SCHEMAS,
    _exact("tokenize number", "/tokenize", {"content": 7}),
    _exact("tokenize empty", "/tokenize", {"content": ""}),
    _exact("tokenize null", "/tokenize", {"content": None}),
    _exact("tokenize mixed pieces", "/tokenize", {"content": ["a", 253, "é"], "with_pieces": True}),
    _exact("tokenize spaces", "/tokenize", {"content": "  a\n\n\tb "}),
    _exact("detokenize empty", "/detokenize", {"tokens": []}),
    _exact("template", "/apply-template", {"messages": TURNS}),
    _exact("template tools", "/apply-template", {"messages": CHAT, "tools": [TOOL]}),
    _exact(
        "template without prompt",
        "/apply-template",
        {"messages": CHAT, "add_generation_prompt": False},
    ),
    _exact("template continued", "/apply-template", {"messages": TURNS[:3]}),
    _exact("template nothing", "/apply-template", {}),
    _exact("template string", "/apply-template", {"messages": "x"}),
    _exact("count", "/v1/chat/completions/input_tokens", {"messages": TURNS}),
    _exact("count short", "/chat/completions/input_tokens", {"messages": CHAT}),
    _exact("count nothing", "/v1/chat/completions/input_tokens", {}),
    _exact("adapters", "/lora-adapters", method="GET"),
    _exact("adapters set", "/lora-adapters", []),
    _exact("adapters object", "/lora-adapters", {}),
    Case(name="adapters odd item", path="/lora-adapters", body=[7]),
    Case(name="infill", path="/infill", body={"input_prefix": "def f(", "input_suffix": ")"}),
    Case(name="rerank", path="/v1/rerank", body={"query": "a", "documents": ["b"]}),
    Case(name="embeddings off", path="/v1/embeddings", body={"input": "a"}),
    Case(name="embedding off", path="/embedding", body={"content": "a"}),
    Case(name="tools off", path="/tools", method="GET"),
)
