// html`<div class=${name}>…</div>`: elements from a tagged template.

import { h } from './view.mjs';

const CHILD = /\0(\d+)\0/;
const TAG = /<!--[^]*?-->|<(\/?)((?:\0\d+\0|[^\s/>\0])*)((?:"[^"]*"|'[^']*'|[^'">])*?)(\/?)>/g;
const ATTRIBUTE = /\.\.\.\0(\d+)\0|([^\s=\0]+)(?:=("[^"]*"|'[^']*'|\S+))?/g;
const VOID = new Set(['br', 'hr', 'img', 'input', 'link', 'meta', 'source', 'wbr']);

// Takes `</${Component}>` and `<//>` to end a component, and `...${props}` for many attributes.
export function html(strings, ...values) {
  const source = strings.reduce((text, one, i) => `${text}\0${i - 1}\0${one}`);
  const stack = [{ children: [] }];
  const top = () => stack[stack.length - 1];
  let at = 0;
  for (const match of source.matchAll(TAG)) {
    top().children.push(...texts(source.slice(at, match.index), values));
    at = match.index + match[0].length;
    const [whole, closes, name, attributes, closesItself] = match;
    if (whole.startsWith('<!--')) continue;
    if (closes) {
      if (stack.length === 1) throw new Error(`html: nothing is open at ${shown(whole)}`);
      close(stack);
      continue;
    }
    stack.push({ type: filled(name, values), props: props(attributes, values), children: [] });
    if (closesItself || VOID.has(top().type)) close(stack);
  }
  top().children.push(...texts(source.slice(at), values));
  if (stack.length > 1) throw new Error(`html: ${shown(String(top().type))} is not closed`);
  const { children } = top();
  return children.length > 1 ? children : children[0];
}

function close(stack) {
  const { type, props, children } = stack.pop();
  stack[stack.length - 1].children.push(h(type, props, ...children));
}

// Returns the texts and values between two tags; white space with a newline in it is layout.
function texts(source, values) {
  return source
    .split(/(\0\d+\0)/)
    .map((one) => (CHILD.test(one) ? values[CHILD.exec(one)[1]] : one))
    .map((one) => (typeof one === 'string' ? one.replace(/^\s*\n\s*|\s*\n\s*$/g, '') : one))
    .filter((one) => one !== '');
}

function props(source, values) {
  const found = {};
  for (const [, spread, name, value] of source.matchAll(ATTRIBUTE)) {
    if (spread !== undefined) Object.assign(found, values[spread]);
    else if (value === undefined) found[name] = true;
    else found[name] = filled(value.replace(/^["']|["']$/g, ''), values);
  }
  return found;
}

// Returns a value that stands alone as it is, and one among letters as text.
function filled(source, values) {
  const alone = /^\0(\d+)\0$/.exec(source);
  if (alone) return values[alone[1]];
  return source.replace(/\0(\d+)\0/g, (_, i) => values[i]);
}

const shown = (text) => text.replace(/\0\d+\0/g, '${…}');
