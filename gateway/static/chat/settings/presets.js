// Settings that were saved under a name.

import { html, useState } from '../../index.js';
import { stored } from '../../shared/stored.js';

const presets = stored('presets', {});

export function Presets({ settings, onChoose }) {
  const [name, write] = useState('');
  const names = Object.keys(presets.value).sort();
  const save = () => {
    presets.value = { ...presets.value, [name.trim()]: settings };
    write('');
  };
  const remove = (gone) => {
    presets.value = Object.fromEntries(Object.entries(presets.value).filter(([one]) => one !== gone));
  };
  return html`<fieldset class="presets">
    <legend>Presets</legend>
    ${names.map(
      (one) => html`<span class="preset">
        <button type="button" onClick=${() => onChoose(presets.value[one])}>${one}</button>
        <button type="button" class="quiet" aria-label=${`Delete the preset ${one}`} onClick=${() => remove(one)}>×</button>
      </span>`,
    )}
    <span class="preset-new">
      <input
        aria-label="Name of a new preset"
        placeholder="Name"
        value=${name}
        onInput=${(event) => write(event.target.value)}
      />
      <button type="button" disabled=${!name.trim()} onClick=${save}>Save these settings</button>
    </span>
  </fieldset>`;
}
