// The line under an answer: how fast it was, and where it came from.

import { html } from '../../index.js';

const seconds = (ms) => (ms < 9950 ? `${(ms / 1000).toFixed(ms < 995 ? 2 : 1)} s` : `${Math.round(ms / 1000)} s`);
const counted = (n) => n.toLocaleString('en');

export function Figures({ figures }) {
  const { n, perSecond, ttftMs, prompt, cached, worker, route, queueMs } = figures;
  const parts = [
    perSecond && [`${perSecond.toFixed(perSecond < 10 ? 1 : 0)} tokens/s`, 'Speed of writing'],
    n !== null && [`${counted(n)} tokens`, 'Length of the answer'],
    ttftMs !== null && [`first after ${seconds(ttftMs)}`, 'Time to the first token'],
    cached !== null && [
      prompt ? `${counted(cached)} of ${counted(prompt)} cached` : `${counted(cached)} cached`,
      'Tokens of the prompt that were read before',
    ],
    worker && [worker, route ? `Worker; chosen for: ${route}` : 'Worker'],
    queueMs >= 50 && [`queued ${seconds(queueMs)}`, 'Time in the queue'],
  ].filter(Boolean);
  return html`<p class="figures">
    ${parts.map(([text, title]) => html`<span title=${title}>${text}</span>`)}
  </p>`;
}
