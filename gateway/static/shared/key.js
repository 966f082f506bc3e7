// Asks for the API key.

import { html, signal, useLayoutEffect, useRef, useState } from '../index.js';
import { Dialog } from './dialog.js';
import { isKeyNeeded } from './server.js';
import { apiKey, isKeyRemembered, setKey } from './stored.js';

export const isKeyDialogOpen = signal(false);

export function KeyDialog() {
  const field = useRef(null);
  const [key, write] = useState(apiKey.peek());
  const [isRemembered, remember] = useState(isKeyRemembered());
  useLayoutEffect(() => {
    field.current.focus();
    field.current.select(); // what is typed replaces a key that was wrong
  }, []);
  const close = () => {
    isKeyDialogOpen.value = false;
    isKeyNeeded.value = false;
  };
  const save = (event) => {
    event.preventDefault();
    setKey(key.trim(), isRemembered);
    close();
  };
  const why = isKeyNeeded.value
    ? apiKey.value
      ? 'The server does not know this key.'
      : 'This server answers only with an API key.'
    : 'Sent with every request to this server, and to nobody else.';
  return html`<${Dialog} title="API key" onClose=${close} kind="narrow">
    <form onSubmit=${save}>
      <p class="muted" id="key-why">${why}</p>
      <input
        ref=${field}
        type="password"
        autocomplete="off"
        aria-label="API key"
        aria-describedby="key-why"
        value=${key}
        onInput=${(event) => write(event.target.value)}
      />
      <label class="check">
        <input
          type="checkbox"
          checked=${isRemembered}
          onChange=${(event) => remember(event.target.checked)}
        />
        Keep it on this device
      </label>
      <div class="actions">
        <button type="button" class="quiet" onClick=${close}>Cancel</button>
        <button type="submit" class="primary">Use this key</button>
      </div>
    </form>
  <//>`;
}
