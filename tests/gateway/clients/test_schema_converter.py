"""The converter that pages import writes the grammars of the server's own."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from worker.grammar.json_schema.schema import to_gbnf

ROOT = Path(__file__).parents[3]
MODULE = ROOT / "gateway" / "static" / "json-schema-to-grammar.mjs"
PUBLISHED = json.loads(
    (ROOT / "tests" / "worker" / "grammar" / "data" / "json_schema_cases.json").read_text()
)
MORE: list[Any] = [
    {"type": "string", "maxLength": 5_000_000, "minLength": 2500},
    {"type": "array", "items": {"type": "null"}, "minItems": 120, "maxItems": 2500},
    {"pattern": '^(?:"a"|[^x]{2,3}){0,150}\\.$'},
    {"pattern": "^(?=a)b$", "title": "taken as any string"},
    {"pattern": "^(a$"},
    {"type": "integer", "minimum": -1_000_000_000_000, "exclusiveMaximum": 7.5},
    {"type": "integer", "minimum": 3, "maximum": 2},
    {"enum": ['a\n"b\\', None, 1.5, {"ü": [True]}]},
    {"properties": {"root": {}, "a b": {}, "and": {}, "also": {}}, "additionalProperties": {}},
    {"allOf": [{"enum": ["a", "b"]}, {"enum": ["c", "b"]}]},
    {"allOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 1}]},
    {"allOf": [{"type": "string"}, {"pattern": "^a$"}]},
    {"type": ["string", "null"], "minLength": 1},
    {"properties": {"next": {"$ref": "#"}}, "$defs": {}},
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"$ref": "#/$defs/a~1b"}}},
    {"$ref": "https://a.test/schema"},
    {"type": "strange"},
    [],
]
_SCRIPT = """
import fs from 'node:fs';
import { SchemaConverter } from '%s';
const convert = (schema) => {
  const converter = new SchemaConverter();
  try { converter.visit(schema, ''); } catch { return null; }
  return converter.formatGrammar();
};
const schemas = JSON.parse(fs.readFileSync(process.argv[2]));
const schema = { properties: { b: { type: 'null' }, a: { type: 'null' } }, required: ['a', 'b'] };
const ordered = [{ a: 0, b: 1 }, { prop_order: { a: 0 } }, {}].map((options) => {
  const converter = new SchemaConverter(options);
  converter.visit(schema, '');
  return converter.formatGrammar().includes('a-kv "," space b-kv');
});
const fetching = new SchemaConverter({ allow_fetch: true });
const same = await fetching.resolveRefs(schema, 'input') === schema;
console.log(JSON.stringify({ grammars: schemas.map(convert), ordered, same }));
"""


def _grammar(schema: Any) -> str | None:
    try:
        return to_gbnf(schema)
    except InvalidRequest:
        return None


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_the_page_writes_the_servers_grammars(tmp_path: Path) -> None:
    script, data = tmp_path / "script.mjs", tmp_path / "schemas.json"
    script.write_text(_SCRIPT % MODULE.as_uri())
    schemas = [case["schema"] for case in PUBLISHED] + MORE
    data.write_text(json.dumps(schemas))
    process = await asyncio.create_subprocess_exec(
        "node", str(script), str(data), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    told = json.loads(out)
    assert told["grammars"] == [_grammar(schema) for schema in schemas]
    assert told["ordered"] == [True, True, False]
    assert told["same"] is True
