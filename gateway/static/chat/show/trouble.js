// What one sees while an answer waits, and when there is none.

import { html, useEffect, useState } from '../../index.js';
import { isKeyDialogOpen } from '../../shared/key.js';
import { goOn, retry } from '../run/run.js';
import { inWords, secondsUntil } from '../run/trouble.js';

export function Waiting({ status }) {
  const { phase, place, waitS, progress } = status;
  const about = waitS === null || waitS === undefined ? '' : `, about ${Math.max(1, Math.round(waitS))} s`;
  const text =
    phase === 'reading'
      ? `Reading the prompt: ${Math.round(progress * 100)} %`
      : place
        ? `Number ${place} in the queue${about}`
        : 'Waiting';
  return html`<p class="waiting" role="status">
    <span class="pulse" aria-hidden="true"></span>${text}
    ${phase === 'reading' && html`<progress max="1" value=${progress} aria-hidden="true"></progress>`}
  </p>`;
}

// Counts down to the moment from which the server will listen again.
function useSeconds(time) {
  const [left, count] = useState(time ? secondsUntil(time) : 0);
  useEffect(() => {
    if (!time) return undefined;
    const timer = setInterval(() => count(secondsUntil(time)), 500);
    return () => clearInterval(timer);
  }, [time]);
  return left;
}

export function Trouble({ message }) {
  const { error } = message;
  const left = useSeconds(error.retryAt);
  const { summary, detail } = inWords(error);
  const hasText = Boolean(message.content || message.reasoning);
  const again = hasText ? 'Continue' : 'Try again';
  return html`<div class="trouble" role="alert">
    <p><strong>${summary}</strong> ${detail && html`<span>${detail}</span>`}</p>
    <div class="actions">
      ${error.status === 401 &&
      html`<button type="button" onClick=${() => (isKeyDialogOpen.value = true)}>Enter the key</button>`}
      <button type="button" disabled=${left > 0} onClick=${() => (hasText ? goOn : retry)(message)}>
        ${left > 0 ? `${again} in ${left} s` : again}
      </button>
    </div>
  </div>`;
}
