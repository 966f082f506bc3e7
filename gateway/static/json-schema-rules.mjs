// The rules that every grammar may use, and the small pieces that rules are written from.

export const SPACE = '| " " | "\\n"{1,2} [ \\t]{0,20}';

const HEX = '[0-9a-fA-F]';
const HOURS = '[01] [0-9] | "2" [0-3]';

// Name -> [body, rules that it needs].
export const PRIMITIVES = {
  boolean: ['("true" | "false")', []],
  'decimal-part': ['[0-9]{1,16}', []],
  'integral-part': ['[0] | [1-9] [0-9]{0,15}', []],
  number: [
    '("-"? integral-part) ("." decimal-part)? ([eE] [-+]? integral-part)?',
    ['integral-part', 'decimal-part'],
  ],
  integer: ['("-"? integral-part)', ['integral-part']],
  value: [
    'object | array | string | number | boolean | null',
    ['object', 'array', 'string', 'number', 'boolean', 'null'],
  ],
  object: [
    '"{" space ( string ":" space value ("," space string ":" space value)* )? space "}"',
    ['string', 'value'],
  ],
  array: ['"[" space ( value ("," space value)* )? space "]"', ['value']],
  uuid: [
    `"\\"" ${[8, 4, 4, 4, 12].map((n) => `${HEX}{${n}}`).join(' "-" ')} "\\""`,
    [],
  ],
  char: [`[^"\\\\\\x7F\\x00-\\x1F] | [\\\\] (["\\\\bfnrt] | "u" ${HEX}{4})`, []],
  string: ['"\\"" char* "\\""', ['char']],
  null: ['"null"', []],
  date: ['[0-9]{4} "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | [1-2] [0-9] | "3" [0-1] )', []],
  time: [
    `(${HOURS}) ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{3} )?` +
      ` ( "Z" | ( "+" | "-" ) ( ${HOURS} ) ":" [0-5] [0-9] )`,
    [],
  ],
  'date-time': ['date "T" time', ['date', 'time']],
  'date-string': ['"\\"" date "\\""', ['date']],
  'time-string': ['"\\"" time "\\""', ['time']],
  'date-time-string': ['"\\"" date-time "\\""', ['date-time']],
};

const MAX_COUNT = 2000;
const MAX_MANY = 1_000_000;
const THOUSAND = 1000;
const ESCAPES = { '\r': '\\r', '\n': '\\n', '"': '\\"', '\\': '\\\\' };

// Returns a name as GBNF may spell it.
export const ruleName = (name) => name.replace(/[^a-zA-Z0-9-]+/g, '-');

// Quotes the JSON text of a value.
export const constant = (value) =>
  `"${JSON.stringify(value).replace(/[\r\n"\\]/g, (one) => ESCAPES[one])}"`;

// Says whether something in a body is repeated so often that a group must not hold it.
export const isMany = (body) => /\{(?:[0-9]+,)?[0-9]{3}/.test(body);

// Repeats an item; `most` null is without end. `share` makes a rule of a body, returns its name.
export function repetition(item, least, most, share, separator = '') {
  if (most === 0) return '';
  if (least === 0 && most === 1) return `${item}?`;
  if (separator) {
    const others = [Math.max(0, least - 1), most === null ? null : most - 1];
    const shares = Math.max(least, most ?? 0) > 99;
    const body = `${separator} ${item}`;
    const rest = repetition(shares ? share(body) : `(${body})`, ...others, share);
    if (least > 0) return `${item} ${rest}`;
    return shares ? `${share(`${item} ${rest}`)}?` : `(${item} ${rest})?`;
  }
  if (most === null && least <= 1) return item + '*+'[least];
  if (Math.max(least, most ?? 0) > MAX_COUNT) return many(item, least, most, share);
  return `${item}{${least},${most ?? ''}}`;
}

// Repeats more often than the grammar parser can count: by the thousand.
function many(item, least, most, share) {
  if (least > MAX_MANY) throw new Error(`more than ${MAX_MANY} repetitions`);
  const thousand = share(`${item}{${THOUSAND}}`);
  const parts = [];
  if (least) {
    parts.push(`${thousand}{${Math.floor(least / THOUSAND)}} ${item}{${least % THOUSAND}}`);
  }
  const extra = most === null || most > MAX_MANY ? null : most - least;
  if (extra === null) {
    parts.push(`${item}*`);
  } else if (extra <= MAX_COUNT) {
    parts.push(`${item}{0,${extra}}`);
  } else {
    const left = extra - THOUSAND;
    const rest = THOUSAND + (left % THOUSAND);
    parts.push(`${thousand}{0,${Math.floor(left / THOUSAND)}} ${item}{0,${rest}}`);
  }
  return `(${parts.join(' ')})`;
}

// Returns a rule body for JSON strings that differ from all `names`.
export function excluding(names, char) {
  const trie = new Map();
  for (const name of names) {
    let place = trie;
    for (const one of JSON.stringify(name).slice(1, -1)) {
      if (!place.has(one)) place.set(one, new Map());
      place = place.get(one);
    }
    place.set('', new Map());
  }
  return `["] ( ${branches(trie, char)} )${trie.has('') ? '' : '?'} ["]`;
}

const IN_CLASS = { ']': '\\]', '\\': '\\\\', '^': '\\x5E', '-': '\\-' };
const inClass = (one) => IN_CLASS[one] ?? one;

function branches(place, char) {
  const following = [...place.keys()].filter(Boolean).sort(byCodePoint);
  const parts = following.map((one) => {
    const inner = branches(place.get(one), char);
    return `[${inClass(one)}] ` + (inner ? `(${inner})` : `${char}+`);
  });
  if (following.length) parts.push(`[^"${following.map(inClass).join('')}] ${char}*`);
  return parts.join(' | ');
}

export const byCodePoint = (a, b) => {
  const [left, right] = [[...a], [...b]].map((text) => text.map((one) => one.codePointAt(0)));
  const i = left.findIndex((code, at) => code !== right[at]);
  return i < 0 ? left.length - right.length : left[i] - (right[i] ?? -1);
};
