// Texts as components.

import { html, useLayoutEffect, useRef } from '../../index.js';
import { MarkdownView, PlainView } from './markdown.js';

// A text in Markdown that may grow; `isWhole` when it does no more.
export function Markdown({ text, isWhole }) {
  const root = useRef(null);
  const view = useRef(null);
  useLayoutEffect(() => {
    view.current ??= new MarkdownView(root.current);
    view.current.show(text, isWhole);
  }, [text, isWhole]);
  return html`<div class="markdown" ref=${root}></div>`;
}

// A text as it is written.
export function Plain({ text }) {
  const root = useRef(null);
  useLayoutEffect(() => {
    root.current.replaceChildren();
    new PlainView(root.current).show(text);
  }, [text]);
  return html`<div ref=${root}></div>`;
}
