// A field for JSON that says what is wrong with it.

import { html, useId } from '../../index.js';

// Returns what is wrong with a text, or ''. `kind` is 'object' or 'array'.
export function jsonTrouble(text, kind) {
  if (!text?.trim()) return '';
  try {
    const value = JSON.parse(text);
    const is = Array.isArray(value) ? 'array' : typeof value;
    return is === kind && value !== null ? '' : `This must be a JSON ${kind}.`;
  } catch (error) {
    return error.message;
  }
}

export function JsonField({ label, help, kind, value, placeholder, onChange }) {
  const id = useId();
  const trouble = jsonTrouble(value, kind);
  return html`<label class="field">
    <span>${label}</span>
    <textarea
      class="mono"
      rows="4"
      spellcheck="false"
      placeholder=${placeholder}
      aria-describedby=${id}
      aria-invalid=${trouble ? 'true' : null}
      value=${value ?? ''}
      onInput=${(event) => onChange(event.target.value)}
    ></textarea>
    <small id=${id} class=${trouble ? 'bad' : 'muted'}>${trouble || help}</small>
  </label>`;
}
