// Hosts with their workers, and a cell for each slot: its height is the share of the context in use.

import { computed, html } from '../index.js';
import { ids, row } from './feed.js';
import { open } from './orders.js';
import { SLOTS, count, plural, rate } from './words.js';

const MANY = 24; // workers; more of them are shown smaller
const natural = new Intl.Collator('en', { numeric: true }).compare;

// The host of each worker, and its workers; changes only when workers come or go.
const hosts = computed(() => {
  const found = new Map();
  for (const name of ids('workers')) {
    const host = row('workers', name)?.host || 'other hosts';
    if (!found.has(host)) found.set(host, []);
    found.get(host).push(name);
  }
  return [...found].sort(([a], [b]) => natural(a, b)).map(([host, names]) => [host, names.sort(natural)]);
});

const CALM = new Set(['ready', 'sleeping']);

// What else there is to know of a worker that does not just serve.
function oddText({ is_ejected: isEjected, progress, retry_s: retryS, why }) {
  const parts = [];
  if (isEjected) parts.push('gets one task at a time');
  if (progress) parts.push(`${Math.round(100 * progress)} % loaded`);
  if (why) parts.push(why);
  if (retryS) parts.push(`again in ${Math.round(retryS)} s`);
  return parts.join(', ');
}

const shortName = (name, host) => (name.startsWith(`${host}/`) ? name.slice(host.length + 1) : name);

const share = (nTokens, nCtx) => Math.round(100 * Math.min(1, nCtx ? nTokens / nCtx : 0)) / 100;

export const slotText = (i, phase, nTokens, nCtx) => {
  const fill = nTokens ? `, ${count(nTokens)} of ${plural(nCtx, 'token')}` : '';
  return `Slot ${i}: ${SLOTS[phase]}${fill}`;
};

function Cells({ load, nCtx }) {
  // Cells have no text of their own: the line above says how many are busy.
  const onPointerOver = ({ target }) => {
    const i = target.dataset.slot;
    if (i !== undefined) target.title = slotText(i, load.slots[i], load.tokens[i], nCtx);
  };
  return html`<div class="cells" aria-hidden="true" onPointerOver=${onPointerOver}>
    ${[...load.slots].map(
      (phase, i) => html`<i
        key=${i}
        data-slot=${i}
        class=${phase === '.' ? '' : phase}
        style=${{ '--fill': share(load.tokens[i], nCtx) }}
      ></i>`,
    )}
  </div>`;
}

function Worker({ name, host }) {
  const worker = row('workers', name);
  const load = row('load', name);
  if (!worker || !load) return null;
  const { state, model, device, n_restarts: nRestarts, is_ejected: isEjected } = worker;
  const isCalm = CALM.has(state) && !isEjected;
  const odd = oddText(worker);
  return html`<li class=${`worker ${state === 'sleeping' ? 'asleep' : ''}`}>
    <div class="line">
      <button
        type="button"
        class="worker-name"
        aria-haspopup="dialog"
        onClick=${() => open({ kind: 'worker', worker: name })}
      >
        ${shortName(name, host)}
      </button>
      <span class=${`state ${isCalm ? '' : 'odd'}`}>${state}</span>
      <span class="busy">${load.n_busy}/${load.slots.length}</span>
    </div>
    <${Cells} load=${load} nCtx=${worker.n_ctx} />
    <div class="line facts">
      <span class="clip">
        ${odd && html`<span class="odd">${odd}</span> · `}
        ${model}${device && ` · ${device}`}
        ${nRestarts ? html` · <span class="odd">${plural(nRestarts, 'restart')}</span>` : ''}
        ${load.n_waiting ? ` · ${load.n_waiting} ahead` : ''}
      </span>
      <span class="rate">${load.n_busy ? `${rate(load.tokens_per_s)} tok/s` : ''}</span>
    </div>
  </li>`;
}

function Sum({ names }) {
  const load = names.map((name) => row('load', name)).filter(Boolean);
  const nSlots = load.reduce((sum, one) => sum + one.slots.length, 0);
  const nBusy = load.reduce((sum, one) => sum + one.n_busy, 0);
  return html`<span class="muted">
    ${plural(names.length, 'worker')}, ${count(nBusy)} of ${plural(nSlots, 'slot')} busy
  </span>`;
}

const LEGEND = [
  ['', 'idle'],
  ['r', 'reads'],
  ['w', 'writes'],
  ['e', 'ends'],
  ['b', 'starts'],
];

function Legend() {
  return html`<p class="legend">
    ${LEGEND.map(
      ([phase, text]) => html`<span>
        <i class=${`cell ${phase}`} style=${{ '--fill': phase ? 0.6 : 0 }} aria-hidden="true"></i>
        ${text}
      </span>`,
    )}
    <span>Height: share of the context in use.</span>
  </p>`;
}

export function Workers() {
  const isMany = ids('workers').length > MANY;
  return html`<section class=${`workers ${isMany ? 'many' : ''}`} aria-labelledby="workers-title">
    <div class="section-head">
      <h2 id="workers-title">Workers</h2>
      <${Legend} />
    </div>
    ${!hosts.value.length && html`<p class="muted">No worker is connected.</p>`}
    ${hosts.value.map(
      ([host, names]) => html`<section key=${host} class="host" aria-label=${`Host ${host}`}>
        <h3>${host} <${Sum} names=${names} /></h3>
        <ul>
          ${names.map((name) => html`<${Worker} key=${name} name=${name} host=${host} />`)}
        </ul>
      </section>`,
    )}
  </section>`;
}
