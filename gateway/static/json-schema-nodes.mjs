// Reads a JSON schema into nodes: the subset of it that a grammar can express.

const MAX_DEPTH = 100;
const INT64 = 2n ** 63n;
const FORMATS = new Map(
  ['date', 'time', 'date-time', 'uuid']
    .map((name) => [name, name])
    .concat([1, 2, 3, 4, 5].map((version) => [`uuid${version}`, 'uuid'])),
);

const ANY = { kind: 'any' };

const has = (value, key) => Object.hasOwn(value, key);
const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const isOpen = (schema) => (schema.additionalProperties ?? true) === true;
const hasMembers = (schema) => has(schema, 'properties') || !isOpen(schema);

function fail(path, problem) {
  return new Error(`JSON schema error at ${path}: ${problem}`);
}

// Returns the root's node, and those of all references; throws with the place of a mistake.
export function readSchema(schema, propOrder) {
  const reader = new Reader(schema, propOrder);
  const root = reader.node(schema, '#');
  checkCycles(reader.refs);
  return { root, refs: reader.refs };
}

class Reader {
  constructor(root, propOrder) {
    this.root = root;
    this.propOrder = propOrder;
    this.depth = 0;
    this.refs = new Map();
  }

  node(schema, path) {
    if (!isObject(schema)) throw fail(path, 'schema must be an object');
    if (++this.depth > MAX_DEPTH) throw fail(path, `nested deeper than ${MAX_DEPTH}`);
    const found = this.read(schema, path);
    this.depth--;
    return found;
  }

  read(schema, path) {
    if (has(schema, '$ref')) return this.ref(schema.$ref, path);
    for (const key of ['oneOf', 'anyOf']) {
      if (has(schema, key)) return this.list('anyOf', schema[key], `${path}/${key}`);
    }
    const kind = schema.type ?? null;
    if (Array.isArray(kind)) {
      const variants = kind.map((one) => ({ ...schema, type: one }));
      return this.list('anyOf', variants, `${path}/type`);
    }
    if (has(schema, 'const')) return { kind: 'const', value: schema.const };
    if (has(schema, 'enum')) {
      if (!Array.isArray(schema.enum) || !schema.enum.length) {
        throw fail(path, 'enum must be a non-empty array');
      }
      return { kind: 'choice', values: schema.enum };
    }
    return this.typed(schema, kind, path);
  }

  typed(schema, kind, path) {
    switch (kind) {
      case null:
      case '':
        return this.untyped(schema, path);
      case 'object':
        return this.objectOrAll(schema, path);
      case 'string':
        return has(schema, 'allOf') ? this.allOf(schema, path) : text(schema, path);
      case 'array':
        return this.array(schema, path);
      case 'integer':
        return integer(schema, path);
      case 'number':
      case 'boolean':
      case 'null':
        return { kind: 'primitive', name: kind };
    }
    if (typeof kind === 'string') throw fail(path, `unrecognized type ${kind}`);
    throw fail(path, 'type must be a string or an array of strings');
  }

  list(kind, schemas, path) {
    if (!Array.isArray(schemas)) throw fail(path, 'must be an array of schemas');
    if (!schemas.length) throw fail(path, 'must not be empty');
    return { kind, children: this.each(schemas, path) };
  }

  each(schemas, path) {
    return schemas.map((schema, i) => this.node(schema, `${path}/${i}`));
  }

  allOf(schema, path) {
    return this.list('allOf', schema.allOf, `${path}/allOf`);
  }

  // Without a type the structural keywords decide.
  untyped(schema, path) {
    if (hasMembers(schema)) return this.members(schema, path);
    if (has(schema, 'allOf')) return this.allOf(schema, path);
    if (has(schema, 'items') || has(schema, 'prefixItems')) return this.array(schema, path);
    const isText = ['pattern', 'minLength', 'maxLength'].some((key) => has(schema, key));
    return isText || FORMATS.has(schema.format) ? text(schema, path) : ANY;
  }

  objectOrAll(schema, path) {
    if (!hasMembers(schema) && has(schema, 'allOf')) return this.allOf(schema, path);
    return this.members(schema, path);
  }

  members(schema, path) {
    const needed = new Set(Array.isArray(schema.required) ? schema.required : []);
    const properties = schema.properties ?? {};
    if (!isObject(properties)) throw fail(path, 'properties must be an object');
    const place = (name) => this.propOrder[name] ?? Infinity;
    const found = Object.entries(properties)
      .map(([name, one]) => ({
        name,
        schema: this.node(one, `${path}/properties/${name}`),
        isRequired: needed.has(name),
      }))
      .sort((a, b) => (place(a.name) === place(b.name) ? 0 : place(a.name) - place(b.name)));
    return { kind: 'members', properties: found, additional: this.additional(schema, path) };
  }

  additional(schema, path) {
    // {"type": "object"} on its own accepts any object; named members close it.
    const additional = schema.additionalProperties ?? !has(schema, 'properties');
    if (typeof additional === 'boolean') return additional ? ANY : null;
    if (!isObject(additional)) {
      throw fail(path, 'additionalProperties must be a boolean or a schema');
    }
    return this.node(additional, `${path}/additionalProperties`);
  }

  array(schema, path) {
    const key = has(schema, 'items') ? 'items' : 'prefixItems';
    const items = schema[key] ?? {};
    if (Array.isArray(items)) return { kind: 'row', items: this.each(items, `${path}/${key}`) };
    const node = this.node(items, `${path}/${key}`);
    return { kind: 'array', items: node, ...counts(schema, 'minItems', 'maxItems', path) };
  }

  ref(ref, path) {
    if (typeof ref !== 'string') throw fail(path, '$ref must be a string');
    if (ref !== '#' && !ref.startsWith('#/')) {
      const only = 'only references into the same document are supported';
      throw fail(path, `unsupported $ref ${ref}, ${only}`);
    }
    if (!this.refs.has(ref)) {
      this.refs.set(ref, ANY); // a cycle back to this $ref stops here
      this.refs.set(ref, this.node(this.resolve(ref, path), ref));
    }
    return { kind: 'ref', ref };
  }

  resolve(ref, path) {
    let target = this.root;
    for (const step of ref.split('/').slice(1)) {
      const key = isObject(target) && !has(target, step) ? plain(step) : step;
      const isThere = isObject(target) || (Array.isArray(target) && /^[0-9]+$/.test(key));
      if (!isThere || !has(target, key)) {
        throw fail(path, `cannot resolve $ref ${ref}, ${step} not found`);
      }
      target = target[key];
    }
    return target;
  }
}

function plain(step) {
  try {
    step = decodeURIComponent(step);
  } catch {
    // it stays as it was written
  }
  return step.replaceAll('~1', '/').replaceAll('~0', '~');
}

function text(schema, path) {
  for (const key of ['pattern', 'format']) {
    if (typeof (schema[key] ?? '') !== 'string') throw fail(path, `${key} must be a string`);
  }
  return {
    kind: 'text',
    pattern: schema.pattern ?? '',
    format: FORMATS.get(schema.format) ?? '',
    ...counts(schema, 'minLength', 'maxLength', path),
  };
}

function counts(schema, least, most, path) {
  for (const key of [least, most]) {
    const value = schema[key] ?? 0;
    if (!Number.isInteger(value) || value < 0) {
      throw fail(path, `${key} must be a non-negative integer`);
    }
  }
  const found = { min: schema[least] ?? 0, max: schema[most] ?? null };
  if (found.max !== null && found.min > found.max) {
    throw fail(path, `${least} ${found.min} is larger than ${most} ${found.max}`);
  }
  return found;
}

function integer(schema, path) {
  const bound = (key, round) => {
    if (!Number.isFinite(schema[key])) throw fail(path, `${key} must be a number`);
    return BigInt(round(schema[key]));
  };
  let [min, max] = [null, null];
  if (has(schema, 'minimum')) min = bound('minimum', Math.ceil);
  else if (has(schema, 'exclusiveMinimum')) min = bound('exclusiveMinimum', Math.floor) + 1n;
  if (has(schema, 'maximum')) max = bound('maximum', Math.floor);
  else if (has(schema, 'exclusiveMaximum')) max = bound('exclusiveMaximum', Math.ceil) - 1n;
  if (min !== null && max !== null && min > max) {
    throw fail(path, `no integer is at least ${min} and at most ${max}`);
  }
  // What 64 bits cannot hold bounds nothing.
  if (min !== null && min <= -INT64) min = null;
  if (max !== null && max >= INT64 - 1n) max = null;
  return { kind: 'integer', min, max };
}

// Throws for a reference that begins with itself: no grammar can begin there.
function checkCycles(refs) {
  const finished = new Set();
  const walk = (ref, path) => {
    if (path.has(ref)) throw new Error(`$ref ${ref} refers to itself without end`);
    if (finished.has(ref)) return;
    path.add(ref);
    const waiting = [refs.get(ref)];
    while (waiting.length) {
      const one = waiting.pop();
      if (one.kind === 'ref') walk(one.ref, path);
      else if (one.kind === 'anyOf' || one.kind === 'allOf') waiting.push(...one.children);
    }
    path.delete(ref);
    finished.add(ref);
  };
  for (const ref of refs.keys()) walk(ref, new Set());
}
