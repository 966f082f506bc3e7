// The last words of answers that a reload cuts: a page that goes away may still write to
// localStorage, where IndexedDB would be too slow.

import { ROOT } from '../../shared/root.js';

const NAME = `llamapool:${new URL(ROOT).pathname}:rescued`;

export function keepForReload(messages) {
  if (!messages.length) return;
  try {
    localStorage.setItem(NAME, JSON.stringify(messages));
  } catch {
    // Full or off: what was saved a second ago has to do.
  }
}

// Returns the messages that were kept, once.
export function takeRescued() {
  try {
    const messages = JSON.parse(localStorage.getItem(NAME) ?? '[]');
    localStorage.removeItem(NAME);
    return messages;
  } catch {
    return [];
  }
}
