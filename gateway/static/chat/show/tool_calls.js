// Calls of tools: name and arguments, and fields for the results if nothing answers them.

import { html, useState } from '../../index.js';
import { sendResults } from '../run/run.js';
import { Plain } from './text.js';

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still coming, or no JSON
  }
}

export function ToolCalls({ message, isAnswered, isLive }) {
  const [results, change] = useState(() => message.toolCalls.map(() => ''));
  const put = (i) => (event) =>
    change(results.map((one, j) => (i === j ? event.target.value : one)));
  const submit = (event) => {
    event.preventDefault();
    sendResults(message, message.toolCalls.map((_, i) => results[i] ?? ''));
  };
  const isAsked = !isAnswered && !isLive;
  const calls = message.toolCalls.map(
    (call, i) => html`<li>
      <p class="call-name">Calls <code>${call.name || '…'}</code></p>
      <pre tabindex="0"><code>${pretty(call.arguments)}</code></pre>
      ${isAsked &&
      html`<textarea
        rows="2"
        aria-label=${`Result of ${call.name}`}
        placeholder=${`Result of ${call.name}`}
        value=${results[i] ?? ''}
        onInput=${put(i)}
      ></textarea>`}
    </li>`,
  );
  return html`<form class="tool-calls" onSubmit=${submit}>
    <ol>
      ${calls}
    </ol>
    ${isAsked && html`<button type="submit" class="primary">Send the result</button>`}
  </form>`;
}

export const ToolResult = ({ message }) => html`<details class="tool-result">
  <summary>Result of ${message.toolName || 'a tool'}</summary>
  <${Plain} text=${message.content} />
</details>`;
