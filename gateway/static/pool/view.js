// What the pool is doing: figures, plots, workers with their slots, queue, events, requests.

import { html, useEffect } from '../index.js';
import { isKeyDialogOpen } from '../shared/key.js';
import { connection, fact, look, problem, reader, rowsOf, samples } from './feed.js';
import { Events, Gateways, Models, Queue, Requests } from './lists.js';
import { Orders, open } from './orders.js';
import { Plots } from './plots.js';
import { Workers } from './workers.js';
import { count, percent, plural, rate, seconds } from './words.js';

const TONES = { ok: 'good', 'no slot available': 'warn', draining: 'warn', error: 'bad' };

function Status() {
  if (connection.value === 'live') {
    const status = fact('status', '');
    const text = status === 'no slot available' ? 'all slots busy' : status;
    return html`<span class=${`badge ${TONES[status] ?? 'warn'}`}>${text}</span>`;
  }
  const texts = { connecting: 'connecting …', lost: 'not connected', refused: 'no access' };
  return html`<span class="badge bad">${texts[connection.value]}</span>`;
}

function Figure({ name, value, note, isBad }) {
  return html`<div class=${`figure ${isBad ? 'bad' : ''}`}>
    <dt>${name}</dt>
    <dd>${value} ${note && html`<small>${note}</small>`}</dd>
  </div>`;
}

function Figures() {
  const load = rowsOf('load').map(([, one]) => one);
  const nSlots = load.reduce((sum, one) => sum + one.slots.length, 0);
  const nBusy = load.reduce((sum, one) => sum + one.n_busy, 0);
  const nWaiting = rowsOf('models').reduce((sum, [, one]) => sum + one.n_waiting, 0);
  const [, written, , cached, p50, p95] = samples.value.at(-1) ?? [];
  return html`<dl class="pool-figures">
    <${Figure} name="Tokens a second" value=${rate(written)} />
    <${Figure} name="Slots busy" value=${count(nBusy)} note=${`of ${count(nSlots)}`} />
    <${Figure} name="Waiting" value=${count(nWaiting)} />
    <${Figure} name="First token" value=${seconds(p50)} note=${p95 !== null && p95 !== undefined && `p95 ${seconds(p95)}`} />
    <${Figure} name="Prompt from cache" value=${percent(cached)} />
    <${Figure} name="Went on elsewhere" value=${count(fact('n_moved', 0))} />
    ${fact('n_refused', 0) > 0 &&
    html`<${Figure} name="Requests in quarantine" value=${count(fact('n_refused', 0))} isBad />`}
  </dl>`;
}

function Rollout() {
  const change = fact('rollout', { state: 'none' });
  if (change.state !== 'running' && change.state !== 'going back') return null;
  return html`<section class="notice" aria-label="Rolling change">
    <div>
      <strong>Rolling change ${change.state}:</strong> ${change.n_done} of
      ${' '}${plural(change.n_total, 'worker')}
      ${change.worker && html`, <code>${change.worker}</code>: ${change.step}`}
      <progress max=${change.n_total} value=${change.n_done} aria-label="Workers replaced"></progress>
    </div>
    ${reader.value.may_order && change.state === 'running' &&
    html`<button type="button" onClick=${() => open({ kind: 'abort' })}>Go back …</button>`}
  </section>`;
}

function Refused() {
  return html`<section class="notice bad" role="alert">
    <p>${problem.value}</p>
    <button type="button" onClick=${() => { isKeyDialogOpen.value = true; }}>API key …</button>
  </section>`;
}

function Lost() {
  return html`<p class="notice" role="status">
    ${problem.value} What you see is how it was; the page connects again by itself.
  </p>`;
}

function Head() {
  const { version, host } = fact('about', {});
  return html`<header class="pool-head">
    <h1>Pool ${host && html`<span class="muted">on ${host}</span>`}</h1>
    <${Status} />
    <span class="muted version">${version && `llamapool ${version}`}</span>
    ${reader.value.may_order && fact('has_supervisor', false) &&
    html`<button type="button" onClick=${() => open({ kind: 'rollout' })}>Replace workers …</button>`}
  </header>`;
}

export default function Pool() {
  useEffect(look, []);
  return html`<main class="pool">
    <${Head} />
    ${connection.value === 'refused' && html`<${Refused} />`}
    ${connection.value === 'lost' && html`<${Lost} />`}
    <${Rollout} />
    <${Figures} />
    <${Plots} />
    <div class="columns">
      <${Workers} />
      <div class="side">
        <${Queue} />
        <${Models} />
        <${Events} />
        <${Gateways} />
      </div>
    </div>
    <${Requests} />
    <${Orders} />
  </main>`;
}
