// Everything that views need to show something: html`…`, hooks, signals.

import { h } from '../vendor/preact/preact.mjs';
import htm from '../vendor/preact/htm.mjs';

export { Component, Fragment, createRef, render } from '../vendor/preact/preact.mjs';
export {
  useCallback,
  useEffect,
  useId,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from '../vendor/preact/hooks.mjs';
export {
  batch,
  computed,
  effect,
  signal,
  untracked,
  useComputed,
  useSignal,
  useSignalEffect,
} from '../vendor/preact/signals.mjs';

export const html = htm.bind(h);
