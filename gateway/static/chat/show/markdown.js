// Markdown to elements. What a model writes is never trusted: markdown-it passes no HTML through,
// and what it makes is sanitized.

import MarkdownIt from '../../vendor/markdown/markdown-it.mjs';
import { tex } from '../../vendor/markdown/tex.mjs';
import { dressCode } from './code.js';
import { dressMaths } from './maths.js';
import { sanitized } from './sanitize.js';

// Longer blocks are shown as they are: laying them out anew 20 times a second would freeze the page.
const MAX_CHARS = 20_000;
const PIECE_CHARS = 4_000;

const md = new MarkdownIt({ linkify: true, breaks: false, html: false });
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
md.use(tex, {
  delimiters: 'all',
  render: (source, isBlock) =>
    `<span class="maths${isBlock ? ' block' : ''}">${md.utils.escapeHtml(source)}</span>`,
});
// Pictures would be fetched from wherever the model says: they become links.
md.renderer.rules.image = (tokens, i) => {
  const { content, attrs } = tokens[i];
  const source = md.utils.escapeHtml(Object.fromEntries(attrs).src ?? '');
  return `<a href="${source}">${md.utils.escapeHtml(content || source)}</a>`;
};

// Shows a text that may grow inside an element. Blocks that later text cannot change any more stay
// as they are; only the last one is made anew.
export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.text = '';
    this.begin();
  }

  begin() {
    this.root.replaceChildren();
    this.n = 0; // characters in blocks that stay
    this.tail = []; // elements of the last block
    this.plain = null;
    this.env = {}; // holds what links refer to
  }

  show(given, isWhole) {
    const text = given.replace(/\r\n?/g, '\n');
    if (text === this.text && isWhole === this.isWhole) return;
    if (this.mustBeginAgain(text, isWhole)) this.begin();
    this.text = text;
    this.isWhole = isWhole;
    if (this.plain) {
      this.plain.show(text.slice(this.n));
      return;
    }
    const source = text.slice(this.n);
    const starts = startsOf(source, this.env);
    this.tail.forEach((one) => one.remove());
    this.tail = [];
    const offset = starts.at(-1) ?? 0;
    starts.forEach((start, i) => this.block(source.slice(start, starts[i + 1]), start === offset));
    this.n += offset;
  }

  mustBeginAgain(text, isWhole) {
    if (this.isWhole || !text.startsWith(this.text)) return true;
    // At the end, what links refer to is known, and what follows a long block.
    return isWhole && (this.plain !== null || /^ {0,3}\[[^\]]+\]:/m.test(text));
  }

  block(source, isLast) {
    if (source.length > MAX_CHARS) {
      const own = this.root.appendChild(document.createElement('div'));
      const view = new PlainView(own);
      view.show(source);
      if (isLast) this.plain = view;
      return;
    }
    const made = sanitized(md.render(source, this.env));
    dressCode(made, !isLast || this.isWhole);
    dressMaths(made, !isLast || this.isWhole);
    const elements = [...made.childNodes];
    this.root.append(made);
    if (isLast) this.tail = elements;
  }
}

// Returns where the blocks of a text start; notes in `env` what links refer to.
function startsOf(source, env) {
  const lines = [0];
  for (let at = source.indexOf('\n'); at >= 0; at = source.indexOf('\n', at + 1)) lines.push(at + 1);
  const tokens = [];
  md.block.parse(source, md, env, tokens); // without the texts inside of blocks
  const first = tokens.filter(({ level, map, nesting }) => level === 0 && map && nesting >= 0);
  return first.map(({ map }) => lines[map[0]] ?? 0);
}

// Shows text as it is, in pieces of which the browser lays out those that are seen.
export class PlainView {
  constructor(root) {
    this.root = root;
    root.className = 'plain';
    this.n = 0;
  }

  show(text) {
    for (let at = this.n; at < text.length; at = this.n) {
      const room = PIECE_CHARS - (at % PIECE_CHARS);
      const piece = text.slice(at, at + room);
      if (at % PIECE_CHARS) this.root.lastChild.append(piece);
      else this.root.appendChild(document.createElement('span')).append(piece);
      this.n += piece.length;
    }
  }
}
