// Tells screen readers of an answer in whole sentences, where each token would be noise.

import { signal } from '../../index.js';

// What the live region of the page says now.
export const said = signal('');

const SENTENCE = /[.!?…:](?=\s)|\n+/g;
const PAUSE_MS = 1500;
const MAX_CHARS = 600;

export class Announcer {
  // `told` is the number of characters that were there before.
  constructor(told) {
    this.told = told;
    this.saidAt = -PAUSE_MS;
  }

  // Takes the text of the answer so far; says the sentences that are new and whole.
  hear(text) {
    const now = performance.now();
    if (now - this.saidAt < PAUSE_MS) return;
    const fresh = text.slice(this.told);
    let end = 0;
    for (const match of fresh.matchAll(SENTENCE)) end = match.index + match[0].length;
    if (!end) return;
    this.saidAt = now;
    this.told += end;
    said.value = plain(fresh.slice(0, end));
  }

  // Says the rest, and how the answer ended.
  end(text, outcome) {
    said.value = `${plain(text.slice(this.told))} ${outcome}`.trim();
  }
}

function plain(text) {
  const links = /\[([^\]]*)\]\([^)]*\)/g;
  const shown = text.slice(0, MAX_CHARS).replace(links, '$1');
  const words = shown.replace(/[*_`#>|~]+/g, '').replace(/\s+/g, ' ').trim();
  return text.length > MAX_CHARS ? `${words} …` : words;
}
