// Tells other tabs of this page what has changed, and asks them which answers they are receiving.

import { ROOT } from '../../shared/root.js';

const ASK_MS = 250;
const channel = new BroadcastChannel(`llamapool:${new URL(ROOT).pathname}`);
const waiting = new Map();
const listeners = new Set();

let nAsked = 0;
let isRunning = () => false;

// Says how to find out whether this tab receives an answer.
export const answerForRuns = (ask) => {
  isRunning = ask;
};

// Calls back with `{ conversation }`, the id of what another tab has changed.
export const onChange = (call) => {
  listeners.add(call);
  return () => listeners.delete(call);
};

export const tellChange = (conversation) => channel.postMessage({ kind: 'changed', conversation });

// Resolves to whether another tab receives this answer now.
export const isRunningElsewhere = (id) =>
  new Promise((resolve) => {
    const ask = `${id} ${++nAsked}`; // the same may be asked twice at a time
    const timer = setTimeout(() => done(false), ASK_MS);
    const done = (is) => {
      clearTimeout(timer);
      waiting.delete(ask);
      resolve(is);
    };
    waiting.set(ask, done);
    channel.postMessage({ kind: 'ask', id, ask });
  });

channel.onmessage = ({ data }) => {
  if (data.kind === 'changed') listeners.forEach((call) => call(data));
  else if (data.kind === 'ask' && isRunning(data.id)) channel.postMessage({ ...data, kind: 'mine' });
  else if (data.kind === 'mine') waiting.get(data.ask)?.(true);
};
