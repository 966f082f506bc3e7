// How a model reasoned before it answered: folded, with the time it took.

import { html, useState } from '../../index.js';
import { Markdown } from './text.js';

const taken = (ms) => (ms < 1000 ? 'less than a second' : `${Math.round(ms / 1000)} s`);

function AnswerNow({ run }) {
  const [told, tell] = useState('');
  const end = async () => {
    tell('');
    try {
      await run.endReasoning();
    } catch (error) {
      tell(`The model goes on reasoning: ${error.message}`);
    }
  };
  return html`<button type="button" class="quiet" onClick=${end}>Answer now</button>
    <p role="status">${told}</p>`;
}

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
    ${reasons && html`<${AnswerNow} run=${run} />`}
  </div>`;
}
