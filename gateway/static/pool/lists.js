// The lists beside and below the workers: queue, models, events, gateways, requests.

import { computed, html } from '../index.js';
import { fact, ids, reader, row, rowsOf } from './feed.js';
import { open } from './orders.js';
import { GRAVE, NOTHING, ROUTES, count, eventText, plural, seconds, timeOf } from './words.js';

const SHOWN_EVENTS = 30;
const SHOWN_KEYS = 8;

function Panel({ id, title, note, children }) {
  return html`<section class="panel" aria-labelledby=${id}>
    <h2 id=${id}>${title} ${note && html`<span class="muted">${note}</span>`}</h2>
    ${children}
  </section>`;
}

function Bar({ value, max }) {
  return html`<span class="bar" aria-hidden="true">
    <i style=${{ '--fill': max ? Math.min(1, value / max) : 0 }}></i>
  </span>`;
}

function QueueOf({ model }) {
  const keys = row('queue', model);
  if (!keys) return null;
  const sorted = Object.entries(keys).sort(([, a], [, b]) => b - a);
  const total = sorted.reduce((sum, [, n]) => sum + n, 0);
  const shown = sorted.slice(0, SHOWN_KEYS);
  const nOthers = total - shown.reduce((sum, [, n]) => sum + n, 0);
  if (nOthers) shown.push([`${sorted.length - SHOWN_KEYS} other keys`, nOthers]);
  return html`<li>
    <div class="line"><strong>${model}</strong> <span>${count(total)}</span></div>
    <ul class="keys">
      ${shown.map(
        ([key, n]) => html`<li key=${key}>
          <span class="line"><span>${key || 'without a key'}</span> <span>${count(n)}</span></span>
          <${Bar} value=${n} max=${total} />
        </li>`,
      )}
    </ul>
  </li>`;
}

export function Queue() {
  const models = ids('queue');
  return html`<${Panel} id="queue-title" title="Queue">
    ${models.length
      ? html`<ul class="rows">
          ${models.map((model) => html`<${QueueOf} key=${model} model=${model} />`)}
        </ul>`
      : html`<p class="muted">Nothing waits.</p>`}
  <//>`;
}

const RUNNING = new Set(['loaded', 'loading', 'sleeping']);

function Model({ name }) {
  const model = row('models', name);
  if (!model) return null;
  const { state, progress, n_waiting: nWaiting, limit, is_managed: isManaged, why } = model;
  const runs = RUNNING.has(state);
  const isLoading = state === 'loading' && progress > 0;
  return html`<li>
    <div class="line">
      <span class="model-name">${name}</span>
      <span class="muted">${state}${isLoading ? ` ${Math.round(100 * progress)} %` : ''}</span>
    </div>
    ${nWaiting > 0 &&
    html`<div class="muted">${count(nWaiting)} waiting${limit ? `, at most ${count(limit)}` : ''}</div>`}
    ${why && !runs && html`<div class="odd">${why}</div>`}
    ${isManaged && reader.value.may_load &&
    html`<button
      type="button"
      class="small"
      aria-label=${`${runs ? 'Unload' : 'Load'} ${name}`}
      onClick=${() => open({ kind: runs ? 'unload' : 'load', model: name })}
    >
      ${runs ? 'Unload …' : 'Load …'}
    </button>`}
  </li>`;
}

export function Models() {
  const names = ids('models');
  return html`<${Panel} id="models-title" title="Models">
    ${names.length
      ? html`<ul class="rows models">
          ${names.map((name) => html`<${Model} key=${name} name=${name} />`)}
        </ul>`
      : html`<p class="muted">No model is known yet.</p>`}
  <//>`;
}

const latestEvents = computed(() => ids('events').slice(-SHOWN_EVENTS).reverse());

function Happened({ id }) {
  const event = row('events', id);
  if (!event) return null;
  return html`<li class=${GRAVE.has(event.kind) ? 'grave' : ''}>
    <time datetime=${new Date(1000 * event.time).toISOString()}>${timeOf(event.time)}</time>
    <span>${eventText(event)}</span>
  </li>`;
}

export function Events() {
  const shown = latestEvents.value;
  return html`<${Panel} id="events-title" title="Events">
    ${!shown.length && html`<p class="muted">Nothing has happened yet.</p>`}
    <div class="events" role="log" aria-live="polite" aria-relevant="additions" aria-labelledby="events-title" tabindex="0">
      <ol class="rows">
        ${shown.map((id) => html`<${Happened} key=${id} id=${id} />`)}
      </ol>
    </div>
  <//>`;
}

export function Gateways() {
  const gateways = fact('gateways', []);
  const silent = fact('silent', []);
  if (gateways.length < 2 && !silent.length) return null;
  return html`<${Panel} id="gateways-title" title="Gateways">
    <ul class="rows">
      ${gateways.map(
        (one) => html`<li key=${one.pid} class="line">
          <span>${one.name}${one.is_this ? ' (this page’s)' : ''}</span>
          <span class="muted">
            ${one.state}${one.n_restarts ? `, ${plural(one.n_restarts, 'restart')}` : ''}
          </span>
        </li>`,
      )}
    </ul>
    ${silent.length > 0 &&
    html`<p class="odd">${plural(silent.length, 'gateway does', 'gateways do')} not answer: what
      only they know is missing here.</p>`}
  <//>`;
}

const latestRequests = computed(() => rowsOf('requests').reverse());

const reason = (one) => (one.worker ? (ROUTES[one.route] ?? one.route ?? '') : '');

function Asked({ one }) {
  const cached = one.n_cached ? `${count(one.n_cached)} cached` : '';
  return html`<tr class=${one.status >= 400 ? 'grave' : ''}>
    <td><time datetime=${new Date(1000 * one.time).toISOString()}>${timeOf(one.time)}</time></td>
    <td class="clip">${one.model || NOTHING}</td>
    <td class="clip">${one.key || NOTHING}</td>
    <td class="clip">${one.worker || NOTHING}</td>
    <td class="why">
      ${reason(one)}${one.n_continued ? ` · went on elsewhere ${plural(one.n_continued, 'time')}` : ''}
    </td>
    <td class="number">${count(one.n_prompt)} <small>${cached}</small></td>
    <td class="number">${count(one.n_predicted)}</td>
    <td class="number">${seconds(one.queue_s)}</td>
    <td class="number">${seconds(one.ttft_s || null)}</td>
    <td class="number">${seconds(one.duration_s)}</td>
    <td>${one.finish || one.status}</td>
  </tr>`;
}

export function Requests() {
  const rows = latestRequests.value;
  return html`<section class="requests" aria-labelledby="requests-title">
    <h2 id="requests-title">Last requests</h2>
    ${rows.length
      ? html`<div class="wide-table" tabindex="0" role="group" aria-label="Table of the last requests">
          <table>
            <thead>
              <tr>
                <th scope="col">Ended</th>
                <th scope="col">Model</th>
                <th scope="col">Key</th>
                <th scope="col">Worker</th>
                <th scope="col">Why there</th>
                <th scope="col" class="number">Prompt</th>
                <th scope="col" class="number">Written</th>
                <th scope="col" class="number">Queue</th>
                <th scope="col" class="number">First token</th>
                <th scope="col" class="number">In all</th>
                <th scope="col">End</th>
              </tr>
            </thead>
            <tbody>
              ${rows.map(([id, one]) => html`<${Asked} key=${id} one=${one} />`)}
            </tbody>
          </table>
        </div>`
      : html`<p class="muted">No request has ended yet.</p>`}
  </section>`;
}
