// JSON schemas to GBNF in the page, under the names that llama-server's page used until 2024.
//
//   import { SchemaConverter } from '/json-schema-to-grammar.mjs'
//   const converter = new SchemaConverter({ prop_order: { name: 0, age: 1 } })
//   converter.visit(schema, '')
//   const grammar = converter.formatGrammar()
//
// The texts are those of the server's own converter, which `json_schema` in a request asks for.

import { integerRule } from './json-schema-integers.mjs';
import { readSchema } from './json-schema-nodes.mjs';
import { UnsupportedPattern, patternRule } from './json-schema-patterns.mjs';
import * as rules from './json-schema-rules.mjs';

const RESERVED = new Set(['root', ...Object.keys(rules.PRIMITIVES)]);
const MAX_DEPTH = 200;

export class SchemaConverter {
  // Takes { prop_order, allow_fetch, dotall }, or the order itself as in early 2024: name to place.
  constructor(options = {}) {
    const isOrder = options && Object.values(options).some((one) => typeof one === 'number');
    const { prop_order: order, dotall } = isOrder ? { prop_order: options } : (options ?? {});
    this._propOrder = order ?? {};
    this._dotall = Boolean(dotall);
    this._rules = new Map([['space', rules.SPACE]]);
  }

  // Returns the schema: references stay in their document, and nothing is fetched.
  async resolveRefs(schema) {
    return schema;
  }

  // Adds what a schema allows; returns the name of its rule. The start's name is empty.
  visit(schema, name) {
    const document = readSchema(schema, this._propOrder);
    const add = (rule, body) => this._addRule(rule, body);
    return new Writer(document, this._rules, add, this._dotall).visit(document.root, name);
  }

  formatGrammar() {
    const sorted = [...this._rules.entries()].sort(([a], [b]) => rules.byCodePoint(a, b));
    return sorted.map(([name, body]) => `${name} ::= ${body}\n`).join('');
  }

  // A name with another body gets a number.
  _addRule(name, body) {
    const stem = rules.ruleName(name);
    let [key, i] = [stem, 0];
    while ((this._rules.get(key) ?? body) !== body) key = `${stem}${i++}`;
    this._rules.set(key, body);
    return key;
  }
}

const sub = (name) => (name ? `${name}-` : '');
const isAny = (node) => node.kind === 'any';

// Writes the rules of one document.
class Writer {
  constructor(document, known, add, dotall) {
    this.document = document;
    this.known = known;
    this.add = add;
    this.dotall = dotall;
    this.depth = 0;
    this.refs = new Map();
    this.taken = new Set();
  }

  visit(node, name) {
    if (++this.depth > MAX_DEPTH) throw new Error('allOf and anyOf contain each other without end');
    const found = this.write(node, name);
    this.depth--;
    return found;
  }

  write(node, name) {
    const rule = RESERVED.has(name) ? `${name}-` : name || 'root';
    switch (node.kind) {
      case 'primitive':
        return this.builtin(node.name, rule);
      case 'any':
        return this.add(rule, this.builtin('value'));
      case 'text':
        return this.text(node, rule);
      case 'array':
        return this.array(node, name, rule);
      case 'allOf':
        return this.allOf(node, name, rule);
      case 'integer':
        if (node.min === null && node.max === null) return this.builtin('integer', rule);
    }
    return this.add(rule, this.body(node, name));
  }

  body(node, name) {
    switch (node.kind) {
      case 'ref':
        return this.ref(node.ref);
      case 'anyOf':
        return node.children
          .map((child, i) => this.visit(child, `${name ? `${name}-` : 'alternative-'}${i}`))
          .join(' | ');
      case 'const':
        return rules.constant(node.value);
      case 'choice':
        return `(${node.values.map(rules.constant).join(' | ')})`;
      case 'integer':
        return `(${integerRule(node.min, node.max)})`;
      case 'row':
        return `"[" space ${node.items
          .map((item, i) => this.visit(item, `${sub(name)}tuple-${i}`))
          .join(' "," space ')} space "]"`;
    }
    const isFree = !node.properties.length && node.additional && isAny(node.additional);
    return isFree ? this.builtin('object') : this.members(node, name);
  }

  builtin(kind, rule = '') {
    const [body, needed] = rules.PRIMITIVES[kind];
    const found = this.add(rule === 'root' ? 'root' : kind, body);
    for (const other of needed) if (!this.known.has(other)) this.builtin(other);
    return found;
  }

  ref(ref) {
    if (!this.refs.has(ref)) {
      const name = `ref${rules.ruleName(ref.slice(ref.indexOf('#') + 1))}`;
      let free = name;
      for (let i = 0; this.known.has(free) || this.taken.has(free); i++) free = `${name}-${i}`;
      this.taken.add(free);
      this.refs.set(ref, free);
      this.refs.set(ref, this.visit(this.document.refs.get(ref), free));
    }
    return this.refs.get(ref);
  }

  text(node, rule) {
    if (node.pattern) return this.pattern(node.pattern, rule);
    if (node.format === 'uuid') return this.builtin('uuid', rule);
    if (node.format) return this.add(rule, this.builtin(`${node.format}-string`));
    if (node.min || node.max !== null) {
      const some = this.repetition(this.builtin('char'), node, rule);
      return this.add(rule, `"\\"" ${some} "\\""`);
    }
    return this.builtin('string', rule);
  }

  repetition(item, { min, max }, rule, separator = '') {
    const share = (body) => this.add(`${rule}-part`, body);
    return rules.repetition(item, min, max, share, separator);
  }

  pattern(pattern, rule) {
    const before = new Set(this.known.keys());
    try {
      return patternRule(pattern, rule, this.add, this.dotall);
    } catch (error) {
      if (!(error instanceof UnsupportedPattern)) throw error;
      for (const key of [...this.known.keys()]) if (!before.has(key)) this.known.delete(key);
      console.warn(`pattern ${pattern} taken as any string: ${error.message}`);
      return this.add(rule, this.builtin('string'));
    }
  }

  array(node, name, rule) {
    if (isAny(node.items) && !node.min && node.max === null) return this.builtin('array', rule);
    const item = this.visit(node.items, `${sub(name)}item`);
    const some = this.repetition(item, node, rule, '"," space');
    return this.add(rule, `"[" space ${some} space "]"`);
  }

  members(node, name) {
    const pairs = new Map();
    for (const one of node.properties) {
      const value = this.visit(one.schema, sub(name) + one.name);
      const body = `${rules.constant(one.name)} space ":" space ${value}`;
      pairs.set(one.name, this.add(`${sub(name)}${one.name}-kv`, body));
    }
    const needed = new Set(node.properties.filter((one) => one.isRequired).map((one) => one.name));
    const required = [...pairs].filter(([key]) => needed.has(key)).map(([, pair]) => pair);
    const optional = [...pairs].filter(([key]) => !needed.has(key));
    let others = null;
    if (node.additional) {
      others = this.others(node.additional, [...pairs.keys()], `${sub(name)}additional`);
    }
    return objectBody(required, this.choices(optional, others, name));
  }

  // Adds the rule of a member whose name is none of `names`.
  others(node, names, stem) {
    const value = isAny(node) ? this.builtin('value') : this.visit(node, `${stem}-value`);
    const key = names.length
      ? this.add(`${stem}-k`, rules.excluding(names, this.builtin('char')))
      : this.builtin('string');
    return this.add(`${stem}-kv`, `${key} ":" space ${value}`);
  }

  // Returns what an object may go on with: each begins at another optional member.
  choices(optional, others, name) {
    const members = optional.map(([key, pair]) => [key, pair, '?']);
    if (others !== null) members.push(['*', others, '*']);
    const found = [];
    let following = '';
    for (const [key, pair, times] of members.reverse()) {
      const comma = `( "," space ${pair} )`;
      const rest = following ? ` ${this.add(`${sub(name)}${key}-rest`, following)}` : '';
      found.unshift(pair + (times === '*' ? ` ${comma}*` : '') + rest);
      following = comma + times + rest;
    }
    return found;
  }

  allOf(node, name, rule) {
    const merged = merge(node, this.document.refs);
    if (Array.isArray(merged)) return this.add(rule, `(${merged.join(' | ')})`);
    if (merged.kind === 'members') return this.add(rule, this.members(merged, name));
    return this.visit(merged, name);
  }
}

function objectBody(required, choices) {
  if (!required.length && !choices.length) return '"{" space "}"';
  let body = `"{" space ${required.join(' "," space ')}`;
  if (choices.length) {
    const inner = choices.join(' | ');
    body += required.length ? ` ( "," space ( ${inner} ) )?` : ` (${inner} )?`;
  }
  return `${body} space "}"`;
}

// ---- allOf: its parts as one object, one list of values, or the only one that says something -----

function merge(node, refs) {
  const found = { properties: new Map(), lists: [], others: [], isObject: false };
  for (const part of flat(node, refs)) {
    const inner = part.kind === 'anyOf' ? part.children.flatMap((one) => flat(one, refs)) : [];
    if (part.kind !== 'anyOf') addPart(part, found, true);
    else if (!inner.every((one) => one.kind === 'members')) found.others.push(part);
    else for (const one of inner) addPart(one, found, false);
  }
  const kinds = [found.lists.length > 0, found.isObject, found.others.length > 0];
  if (kinds.filter(Boolean).length > 1 || found.others.length > 1) {
    throw new Error('allOf: these parts together cannot become a grammar');
  }
  if (found.lists.length) {
    const shared = found.lists.reduce((a, b) => a.filter((one) => b.includes(one)));
    if (!shared.length) throw new Error('allOf: no value is in all lists');
    return [...new Set(shared)].sort(rules.byCodePoint);
  }
  if (found.isObject) {
    return { kind: 'members', properties: [...found.properties.values()], additional: null };
  }
  return found.others[0] ?? { kind: 'any' };
}

// Walks through references and nested `allOf`, each once.
function flat(node, refs) {
  const [found, seen, waiting] = [[], new Set(), [node]];
  while (waiting.length) {
    const one = waiting.shift();
    if (one.kind === 'allOf') waiting.unshift(...one.children);
    else if (one.kind !== 'ref') found.push(one);
    else if (!seen.has(one.ref)) {
      seen.add(one.ref);
      waiting.unshift(refs.get(one.ref));
    }
  }
  return found.filter((one) => !isAny(one));
}

function addPart(part, found, isRequired) {
  if (part.kind === 'members') {
    found.isObject = true;
    for (const one of part.properties) {
      const needed = isRequired || Boolean(found.properties.get(one.name)?.isRequired);
      found.properties.set(one.name, { ...one, isRequired: needed });
    }
  } else if (part.kind === 'choice') {
    found.lists.push(part.values.map(rules.constant));
  } else if (part.kind === 'const') {
    found.lists.push([rules.constant(part.value)]);
  } else if (!found.others.some((one) => written(one) === written(part))) {
    found.others.push(part);
  }
}

// Writes a node, whose bounds JSON knows no numbers for.
const written = (node) =>
  JSON.stringify(node, (_, value) => (typeof value === 'bigint' ? String(value) : value));
