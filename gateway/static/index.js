// Preact with its hooks and signals, and htm: for the page, and for pages that llama-server served.

import { h } from './vendor/preact/preact.mjs';
import htm from './vendor/preact/htm.mjs';

export {
  Component,
  Fragment,
  cloneElement,
  createContext,
  createElement,
  createRef,
  h,
  hydrate,
  render,
  toChildArray,
} from './vendor/preact/preact.mjs';
export * from './vendor/preact/hooks.mjs';
export {
  Signal,
  batch,
  computed,
  effect,
  signal,
  untracked,
  useComputed,
  useSignal,
  useSignalEffect,
} from './vendor/preact/signals.mjs';

export const html = htm.bind(h);
