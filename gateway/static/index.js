// What pages of llama-server imported from '/index.js': signals, components, html`…`. A small
// implementation of our own; the names mean what they mean in Preact.

export { batch, computed, effect, signal, untracked, Signal } from './signals.mjs';
export { html } from './template.mjs';
export {
  Component,
  Fragment,
  createRef,
  h,
  h as createElement,
  render,
  useCallback,
  useComputed,
  useEffect,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useSignal,
  useSignalEffect,
  useState,
} from './view.mjs';
