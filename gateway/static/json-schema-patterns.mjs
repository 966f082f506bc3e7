// Regular expressions as rules: what JSON schemas use of them.

import { isMany, repetition } from './json-schema-rules.mjs';

const SPECIAL = new Set('|.()[]{}*+?^$');
const ESCAPE = /\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"[\]-])/y;
const MAX_DEPTH = 100;

// A regular expression that no grammar here can express: any string is taken then.
export class UnsupportedPattern extends Error {}

// Adds the rule of the JSON strings that match a pattern; returns its name.
export function patternRule(pattern, name, addRule, dotall) {
  if (pattern.length < 2 || !pattern.startsWith('^') || !pattern.endsWith('$')) {
    throw new UnsupportedPattern("not anchored with '^' and '$'");
  }
  return addRule(name, `"\\"" (${new Reader(pattern, name, addRule, dotall).read()}) "\\""`);
}

// Walks over a pattern once; a sequence is a list of [text, whether it is a literal].
class Reader {
  constructor(pattern, name, addRule, dotall) {
    this.pattern = pattern;
    this.text = pattern.slice(1, -1);
    this.name = name;
    this.addRule = addRule;
    this.dot = dotall ? '[\\U00000000-\\U0010FFFF]' : '[^\\x0A\\x0D]';
    this.at = 0;
    this.depth = 0;
    this.shared = new Map();
  }

  read() {
    const body = this.sequence();
    if (this.depth) throw this.invalid('unbalanced parentheses');
    return body;
  }

  // Reads up to the parenthesis that closes, or to the end.
  sequence() {
    const parts = [];
    while (this.at < this.text.length) {
      const char = this.text[this.at];
      if (char === ')') {
        this.at++;
        if (!this.depth) throw this.invalid('unbalanced parentheses');
        this.depth--;
        break;
      }
      if ('*+?{'.includes(char)) this.repeat(parts, char);
      else parts.push(this.part(char));
    }
    return joined(parts);
  }

  part(char) {
    if (char === '.') {
      this.at++;
      return [this.addRule('dot', this.dot), false];
    }
    if (char === '|') {
      this.at++;
      return ['|', false];
    }
    if (char === '(') return [this.group(), false];
    if (char === '[') return [this.charClass(), false];
    if (char === '^' || char === '$') throw new UnsupportedPattern('anchor inside the pattern');
    return [this.literal(), true];
  }

  group() {
    this.at++;
    if (this.text[this.at] === '?') {
      if (this.text[this.at + 1] !== ':') throw new UnsupportedPattern('unsupported group syntax');
      this.at += 2;
    }
    if (++this.depth > MAX_DEPTH) throw new UnsupportedPattern('pattern nesting too deep');
    return `(${this.sequence()})`;
  }

  charClass() {
    const start = this.at++;
    while (this.at < this.text.length && this.text[this.at] !== ']') {
      this.at += this.escapeLength('in character class') || 1;
    }
    if (this.at >= this.text.length) throw this.invalid('unterminated character class');
    return this.text.slice(start, ++this.at);
  }

  // Returns the length of the escape here, 0 if there is none; it must be one of GBNF's.
  escapeLength(where) {
    if (this.text[this.at] !== '\\') return 0;
    ESCAPE.lastIndex = this.at;
    const found = ESCAPE.exec(this.text);
    if (!found) throw new UnsupportedPattern(`unsupported escape ${where}`);
    return found[0].length;
  }

  // Reads plain characters, but leaves the last to a repetition that follows it.
  literal() {
    let found = '';
    while (this.at < this.text.length) {
      const [char, following] = [this.text[this.at], this.text[this.at + 1] ?? ''];
      const mayTake = !found || !following || following === '.' || !SPECIAL.has(following);
      if (char === '\\') {
        found += this.escaped(following);
      } else if (char === '"') {
        found += '\\"';
        this.at++;
      } else if (!SPECIAL.has(char) && mayTake) {
        found += char;
        this.at++;
      } else {
        break;
      }
    }
    if (!found) throw new UnsupportedPattern(`unsupported character: ${this.text[this.at]}`);
    return found;
  }

  escaped(following) {
    if (!following) throw this.invalid('trailing backslash');
    const start = this.at;
    if (SPECIAL.has(following)) {
      this.at += 2;
      return following; // a bracket or a dot means nothing in a GBNF literal
    }
    this.at += this.escapeLength('outside a character class');
    return this.text.slice(start, this.at);
  }

  repeat(parts, char) {
    let times = null;
    if (char === '{') times = this.times();
    else this.at++;
    if (!parts.length) throw this.invalid('nothing to repeat');
    const [text, isLiteral] = parts.pop();
    const share = (body) => this.share(body);
    if (times === null) {
      const plain = isLiteral ? `"${text}"` : text;
      parts.push([(!isLiteral && isMany(text) ? share(text) : plain) + char, false]);
    } else {
      parts.push([repetition(isLiteral ? `"${text}"` : share(text), ...times, share), false]);
    }
  }

  // Makes a rule of what is repeated, once.
  share(body) {
    if (!this.shared.has(body)) {
      this.shared.set(body, this.addRule(`${this.name}-${this.shared.size + 1}`, body));
    }
    return this.shared.get(body);
  }

  times() {
    const end = this.text.indexOf('}', this.at);
    if (end < 0) throw new UnsupportedPattern('unterminated curly brackets');
    const numbers = this.text.slice(this.at + 1, end).split(',');
    this.at = end + 1;
    const isEmpty = numbers.length === 1 && !numbers[0];
    if (isEmpty || numbers.length > 2 || !numbers.every((one) => /^[0-9]{0,9}$/.test(one))) {
      throw new UnsupportedPattern('invalid number in curly brackets');
    }
    const least = Number(numbers[0]);
    const last = numbers[numbers.length - 1];
    const most = last ? Number(last) : null;
    if (most !== null && least > most) {
      throw this.invalid('the numbers in curly brackets are out of order');
    }
    return [least, most];
  }

  invalid(problem) {
    return new Error(`Invalid pattern ${this.pattern}: ${problem}`);
  }
}

// Writes a sequence, literals side by side as one.
function joined(parts) {
  const found = [];
  let plain = '';
  for (const [text, isLiteral] of [...parts, ['', false]]) {
    if (isLiteral) {
      plain += text;
      continue;
    }
    if (plain) found.push(`"${plain}"`);
    plain = '';
    found.push(text);
  }
  return found.slice(0, -1).join(' ');
}
