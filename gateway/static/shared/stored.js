// Signals whose values the browser keeps. Other pages of this address may stand on other paths:
// every name holds the path of this one.

import { effect, signal } from '../index.js';
import { ROOT } from './root.js';

const nameOf = (name) => `llamapool:${new URL(ROOT).pathname}:${name}`;

function read(area, name, otherwise) {
  try {
    const text = area().getItem(nameOf(name));
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise; // storage is off, or holds something else
  }
}

function write(area, name, value) {
  try {
    if (value === null) area().removeItem(nameOf(name));
    else area().setItem(nameOf(name), JSON.stringify(value));
  } catch {
    // Storage is off or full: the value holds until the page is closed.
  }
}

const forever = () => localStorage;
const untilClosed = () => sessionStorage;

// Returns a signal that keeps its value over reloads, and follows changes in other tabs.
export function stored(name, otherwise) {
  const value = signal(read(forever, name, otherwise));
  let isFirst = true;
  effect(() => {
    const now = value.value;
    if (!isFirst) write(forever, name, now);
    isFirst = false;
  });
  addEventListener('storage', (event) => {
    if (event.key === nameOf(name)) value.value = read(forever, name, otherwise);
  });
  return value;
}

// The API key, kept until the tab is closed, or for ever if the user wants that.
export const apiKey = signal(read(untilClosed, 'key', null) ?? read(forever, 'key', ''));
export const isKeyRemembered = () => read(forever, 'key', '') !== '';

export function setKey(key, isRemembered) {
  write(untilClosed, 'key', key || null);
  write(forever, 'key', isRemembered && key ? key : null);
  apiKey.value = key;
}

// 'light', 'dark', or '' for the system's.
export const theme = stored('theme', '');

effect(() => {
  const { dataset } = document.documentElement;
  if (theme.value) dataset.theme = theme.value;
  else delete dataset.theme;
});
