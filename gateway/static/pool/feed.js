// The state of the pool as the feed brings it: a signal for each row, so that only what has changed
// is shown anew. Nothing is received while the page is hidden or shows another view.

import { RequestError, request } from '../shared/server.js';
import { events } from '../shared/sse.js';
import { apiKey } from '../shared/stored.js';
import { batch, effect, signal } from '../index.js';

const N_SECONDS = 600;
const N_EVENTS = 100;
const SILENT_MS = 15_000; // A sample comes every second: without one the connection is dead.
const LONGEST_PAUSE_MS = 10_000;

// 'connecting', 'live', 'lost' (tried again by itself) or 'refused' (another key may help).
export const connection = signal('connecting');
export const problem = signal('');
// What this reader may do, as the server says.
export const reader = signal({ key: '', may_order: false, why_not: '', may_load: false });
// Samples in the order of time: [second, ...values].
export const samples = signal([]);

const NAMES = ['pool', 'models', 'workers', 'load', 'queue', 'events', 'requests'];
const sections = Object.fromEntries(
  NAMES.map((name) => [name, { ids: signal([]), rows: new Map() }]),
);

// The ids of a section's rows, in the server's order; a new list only when rows come or go.
export const ids = (name) => sections[name].ids.value;
// One row; undefined if there is none.
export const row = (name, id) => cell(sections[name], id).value;
export const rowsOf = (name) => ids(name).map((id) => [id, row(name, id)]);
export const fact = (name, otherwise) => row('pool', name) ?? otherwise;

function cell(section, id) {
  let found = section.rows.get(id);
  if (found === undefined) section.rows.set(id, (found = signal(undefined)));
  return found;
}

function put(section, rows) {
  const before = section.ids.peek();
  const known = new Set(before);
  const gone = new Set();
  for (const [id, value] of Object.entries(rows)) {
    if (value === null) gone.add(id);
    else known.add(id);
    cell(section, id).value = value ?? undefined;
  }
  for (const id of gone) {
    known.delete(id);
    section.rows.delete(id);
  }
  if (known.size !== before.length || gone.size) section.ids.value = [...known];
}

function replace(name, rows) {
  const section = sections[name];
  const old = section.ids.peek().filter((id) => !(id in rows));
  put(section, { ...Object.fromEntries(old.map((id) => [id, null])), ...rows });
  section.ids.value = Object.keys(rows);
}

// A gateway that was replaced took its events and samples with it: those that came stay.
function join(name, rows) {
  const section = sections[name];
  const all = { ...Object.fromEntries(rowsOf(name)), ...rows };
  const sorted = Object.entries(all).sort(([, a], [, b]) => a.time - b.time);
  replace(name, Object.fromEntries(sorted.slice(-N_EVENTS)));
}

function addSamples(rows) {
  const fresh = Object.entries(rows).filter(([, value]) => value !== null);
  if (!fresh.length) return;
  const all = new Map(samples.peek().map((one) => [one[0], one]));
  for (const [second, values] of fresh) all.set(Number(second), [Number(second), ...values]);
  const newest = Math.max(...all.keys());
  samples.value = [...all.values()]
    .filter(([second]) => second > newest - N_SECONDS)
    .sort(([a], [b]) => a - b);
}

function take(kind, data) {
  if (kind === 'reader') reader.value = data;
  if (kind !== 'state' && kind !== 'change') return;
  for (const name of NAMES) {
    const rows = data[name] ?? {};
    if (kind === 'change') put(sections[name], rows);
    else if (name === 'events') join(name, rows);
    else replace(name, rows);
  }
  addSamples(data.samples ?? {});
  connection.value = 'live';
}

// Receives until the signal ends it; connects anew by itself.
async function receive(until) {
  let pause = 500;
  while (!until.aborted) {
    try {
      await receiveOnce(until, () => {
        pause = 500;
      });
      if (until.aborted) return;
      problem.value = 'The gateway has ended the stream.';
      pause = 300;
    } catch (error) {
      if (until.aborted) return;
      problem.value = error instanceof RequestError ? error.message : 'The connection broke.';
      if (error.status === 401 || error.status === 403) {
        connection.value = 'refused';
        return;
      }
      if (error.retryAfter) pause = error.retryAfter * 1000;
    }
    connection.value = 'lost';
    await sleep(pause * (0.75 + Math.random() / 2), until);
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}

async function receiveOnce(until, onLive) {
  const own = new AbortController();
  const stop = () => own.abort();
  until.addEventListener('abort', stop);
  let timer = setTimeout(stop, SILENT_MS);
  try {
    const response = await request('pool/events', { signal: own.signal });
    for await (const { event, data } of events(response)) {
      clearTimeout(timer);
      timer = setTimeout(stop, SILENT_MS);
      if (own.signal.aborted) return; // what has come with the event before is not wanted any more
      if (data === undefined) continue; // a comment
      batch(() => take(event, JSON.parse(data)));
      onLive();
    }
  } finally {
    clearTimeout(timer);
    until.removeEventListener('abort', stop);
    own.abort();
  }
}

// Resolves after a time, or at once when the network comes back or the signal ends it.
const sleep = (ms, until) =>
  new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener('online', done);
      until.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    addEventListener('online', done);
    until.addEventListener('abort', done);
  });

// Receives while the page is seen, with the present key; returns the function that ends it.
export function look() {
  const isSeen = signal(document.visibilityState === 'visible');
  const onChange = () => {
    isSeen.value = document.visibilityState === 'visible';
  };
  document.addEventListener('visibilitychange', onChange);
  const end = effect(() => {
    if (!isSeen.value) return undefined;
    apiKey.value; // another key: connect anew
    connection.value = 'connecting';
    const controller = new AbortController();
    receive(controller.signal);
    return () => controller.abort();
  });
  return () => {
    end();
    document.removeEventListener('visibilitychange', onChange);
  };
}
