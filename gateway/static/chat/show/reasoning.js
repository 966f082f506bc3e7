// How a model reasoned before it answered: folded, with the time it took.

import { html } from '../../shared/ui.js';
import { Markdown } from './text.js';

const taken = (ms) => (ms < 1000 ? 'less than a second' : `${Math.round(ms / 1000)} s`);

export function Reasoning({ message, run }) {
  const reasons = Boolean(run) && !message.content && !message.toolCalls?.length;
  const label = reasons ? 'Reasoning' : 'Reasoned for';
  return html`<div class="reasoning">
    <details>
      <summary>
        ${reasons && html`<span class="pulse" aria-hidden="true"></span>`}
        ${label} ${message.reasoningMs ? taken(message.reasoningMs) : ''}
      </summary>
      <${Markdown} text=${message.reasoning} isWhole=${!reasons} />
    </details>
    ${reasons &&
    html`<button type="button" class="quiet" onClick=${() => run.endReasoning()}>Answer now</button>`}
  </div>`;
}
