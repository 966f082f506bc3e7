// What an admin does to the pool: each order is confirmed in a dialog, which also says if it failed.

import { Dialog } from '../shared/dialog.js';
import { request } from '../shared/server.js';
import { html, signal, useState } from '../index.js';
import { reader, row } from './feed.js';
import { NOTHING, SLOTS, count, rate } from './words.js';

// Which dialog is open: { kind, worker or model }; null is none.
const shown = signal(null);

export const open = (order) => {
  shown.value = order;
};
const close = () => {
  shown.value = null;
};

// A form with one button that gives an order; closes when the server has accepted it.
function Confirm({ title, path, body, verb, isDanger = true, children }) {
  const [order] = useState(shown.peek());
  const [problem, tell] = useState('');
  const [isBusy, setBusy] = useState(false);
  const send = async (event) => {
    event.preventDefault();
    setBusy(true);
    tell('');
    try {
      await request(path, { body });
      if (shown.peek() === order) close(); // else it was left, and another dialog may be open
    } catch (error) {
      tell(error.message);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${close} kind="narrow">
    <form onSubmit=${send}>
      ${children}
      ${problem && html`<p class="failure" role="alert">Not done: ${problem}</p>`}
      <div class="actions">
        <button type="button" class="quiet" onClick=${close}>Cancel</button>
        <button type="submit" class=${isDanger ? 'danger' : 'primary'} disabled=${isBusy}>
          ${isBusy ? 'Asking the server …' : verb}
        </button>
      </div>
    </form>
  <//>`;
}

function Drain({ worker }) {
  const [force, setForce] = useState(false);
  return html`<${Confirm}
    title=${`Drain ${worker}?`}
    path="admin/drain"
    body=${{ worker, force }}
    verb="Drain"
  >
    <p>
      Its streams go on at other workers of the model, and its process ends. It stays stopped until
      it is started again here or with <code>llamapool undrain</code>.
    </p>
    <label class="check">
      <input type="checkbox" checked=${force} onChange=${(event) => setForce(event.target.checked)} />
      Also if it is the only one of its model: requests then wait
    </label>
  <//>`;
}

function Undrain({ worker }) {
  return html`<${Confirm}
    title=${`Start ${worker} again?`}
    path="admin/undrain"
    body=${{ worker }}
    verb="Start again"
    isDanger=${false}
  >
    <p>Its process starts and loads its model; then it takes requests.</p>
  <//>`;
}

const SURGES = {
  auto: 'where memory allows it',
  on: 'always',
  off: 'never: the old one leaves first',
};

function Rollout() {
  const [surge, setSurge] = useState('auto');
  const [onlyChanged, setOnly] = useState(false);
  return html`<${Confirm}
    title="Replace the workers?"
    path="admin/rollout"
    body=${{ surge, only_changed: onlyChanged }}
    verb="Replace them"
  >
    <p>
      One worker after the other is started anew with the configuration as its file says now. Streams
      go on at other workers. If a new worker fails, all goes back.
    </p>
    <label>
      Start the new worker before the old one leaves
      <select value=${surge} onChange=${(event) => setSurge(event.target.value)}>
        ${Object.entries(SURGES).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
      </select>
    </label>
    <label class="check">
      <input type="checkbox" checked=${onlyChanged} onChange=${(event) => setOnly(event.target.checked)} />
      Only workers whose configuration or files have changed
    </label>
  <//>`;
}

function Abort() {
  return html`<${Confirm}
    title="Go back to the old workers?"
    path="admin/rollout/abort"
    body=${{}}
    verb="Go back"
  >
    <p>The rolling change ends, and the workers that it has replaced are put back.</p>
  <//>`;
}

function Load({ model }) {
  return html`<${Confirm}
    title=${`Load ${model}?`}
    path="models/load"
    body=${{ model }}
    verb="Load"
    isDanger=${false}
  >
    <p>If there is no room, the model that was used longest ago is unloaded for it.</p>
  <//>`;
}

function Unload({ model }) {
  return html`<${Confirm}
    title=${`Unload ${model}?`}
    path="models/unload"
    body=${{ model }}
    verb="Unload"
  >
    <p>What runs is finished. The next request for it loads it again, and waits meanwhile.</p>
  <//>`;
}

const fill = (tokens, nCtx) => (tokens ? `${count(tokens)} of ${count(nCtx)}` : NOTHING);

function Slots({ load, nCtx }) {
  return html`<table>
    <thead>
      <tr><th scope="col">Slot</th><th scope="col">State</th><th scope="col" class="number">Tokens in its context</th></tr>
    </thead>
    <tbody>
      ${[...load.slots].map(
        (phase, i) => html`<tr key=${i}>
          <td>${i}</td><td>${SLOTS[phase]}</td><td class="number">${fill(load.tokens[i], nCtx)}</td>
        </tr>`,
      )}
    </tbody>
  </table>`;
}

const STOPPED = new Set(['drained', 'given up', 'quarantined']);

function Actions({ name, worker }) {
  const { may_order: mayOrder, why_not: whyNot } = reader.value;
  if (!mayOrder) return html`<p class="muted">${whyNot}</p>`;
  const isStopped = STOPPED.has(worker.state);
  const kind = isStopped ? 'undrain' : 'drain';
  if (isStopped && !worker.is_supervised) return null;
  return html`<div class="actions">
    <button type="button" class=${isStopped ? 'primary' : 'danger'} onClick=${() => open({ kind, worker: name })}>
      ${isStopped ? 'Start again …' : 'Drain …'}
    </button>
  </div>`;
}

function WorkerDetails({ worker: name }) {
  const worker = row('workers', name);
  const load = row('load', name);
  const gone = html`<p>It is not connected any more.</p>`;
  const facts = worker && load && [
    ['State', worker.state + (worker.is_ejected ? ', gets one task at a time' : '')],
    worker.why && ['Why', worker.why],
    ['Model', worker.model],
    ['Device', worker.device || NOTHING],
    ['llama.cpp', worker.build || NOTHING],
    ['Tokens a second', rate(load.tokens_per_s)],
    ['Cells of the cache', load.n_cells ? `${count(load.n_used)} of ${count(load.n_cells)} in use` : NOTHING],
    ['Restarts', worker.n_restarts ?? 'not started by this host'],
    worker.pid > 0 && ['Process', worker.pid],
  ].filter(Boolean);
  return html`<${Dialog} title=${name} onClose=${close}>
    ${facts
      ? html`<div class="details">
          <dl>${facts.map(([key, value]) => html`<div key=${key}><dt>${key}</dt><dd>${value}</dd></div>`)}</dl>
          ${load.slots.length > 0 && html`<${Slots} load=${load} nCtx=${worker.n_ctx} />`}
          <${Actions} name=${name} worker=${worker} />
        </div>`
      : gone}
  <//>`;
}

const KINDS = {
  worker: WorkerDetails,
  drain: Drain,
  undrain: Undrain,
  rollout: Rollout,
  abort: Abort,
  load: Load,
  unload: Unload,
};

export function Orders() {
  const order = shown.value;
  if (!order) return null;
  const { kind, ...rest } = order;
  return html`<${KINDS[kind]} key=${kind} ...${rest} />`;
}
