// The settings of a chat: system prompt, sampling, tools, the form of the answer.

import { html, useState } from '../../index.js';
import { Dialog } from '../../shared/dialog.js';
import { amend, open } from '../store/chats.js';
import { props } from '../run/server.js';
import { fieldsOf, valueOf } from './fields.js';
import { JsonField, jsonTrouble } from './json_field.js';
import { Presets } from './presets.js';

const TOOLS = '[{"type": "function", "function": {"name": "…", "parameters": {…}}}]';
const SCHEMA = '{"type": "object", "properties": {…}}';

function Field({ field, value, onChange }) {
  const { name, label, help, step, min, max, usual, said } = field;
  const isChanged = value !== undefined;
  const shown = isChanged ? value : '';
  const take = (event) => onChange(valueOf(field, event.target.value));
  const input =
    typeof usual === 'boolean'
      ? html`<select onChange=${(event) => onChange(valueOf(field, event.target.value === 'true'))}>
          ${[false, true].map(
            (one) => html`<option value=${one} selected=${one === (value ?? usual)}>${one ? 'on' : 'off'}</option>`,
          )}
        </select>`
      : html`<input
          type=${typeof usual === 'number' ? 'number' : 'text'}
          name=${name}
          step=${step}
          min=${min}
          max=${max}
          placeholder=${said}
          value=${shown}
          onChange=${take}
        />`;
  return html`<label class=${`field ${isChanged ? 'changed' : ''}`} title=${help}>
    <span>${label}</span>
    ${input}
  </label>`;
}

function Sampling({ sampling, onChange }) {
  const fields = fieldsOf(props.value);
  const put = (name) => (value) => {
    const rest = Object.fromEntries(Object.entries(sampling).filter(([one]) => one !== name));
    onChange(value === undefined ? rest : { ...rest, [name]: value });
  };
  const shown = (isFirst) =>
    fields
      .filter((field) => field.isFirst === isFirst)
      .map((field) => html`<${Field}
        key=${field.name}
        field=${field}
        value=${sampling[field.name]}
        onChange=${put(field.name)}
      />`);
  const n = Object.keys(sampling).length;
  return html`<fieldset>
    <legend>Sampling</legend>
    ${!fields.length && html`<p class="muted">The server has not said which settings this model has.</p>`}
    <div class="fields">${shown(true)}</div>
    <details>
      <summary>All settings</summary>
      <div class="fields">${shown(false)}</div>
    </details>
    <p class="muted">
      ${n ? `${n} changed; only these are sent.` : 'What is grey is the server’s; nothing is sent.'}
      ${n > 0 && html` <button type="button" class="quiet" onClick=${() => onChange({})}>Reset</button>`}
    </p>
  </fieldset>`;
}

export function SettingsDialog({ onClose }) {
  const [chat] = useState(open.peek()); // going back may open another one below the dialog
  const [settings, change] = useState(chat.settings);
  const put = (name) => (value) => change({ ...settings, [name]: value });
  const isBroken =
    jsonTrouble(settings.tools, 'array') || jsonTrouble(settings.schema, 'object') || jsonTrouble(settings.extra, 'object');
  const save = (event) => {
    event.preventDefault();
    if (isBroken) return;
    amend(chat, { settings });
    onClose();
  };
  return html`<${Dialog} title="Settings of this chat" onClose=${onClose}>
    <form class="settings" onSubmit=${save}>
      <label class="field">
        <span>System prompt</span>
        <textarea
          rows="3"
          placeholder="Who the model is, and how it shall answer"
          value=${settings.system ?? ''}
          onInput=${(event) => put('system')(event.target.value)}
        ></textarea>
      </label>
      <${Sampling} sampling=${settings.sampling ?? {}} onChange=${put('sampling')} />
      <details open=${Boolean(settings.schema || settings.tools || settings.extra)}>
        <summary>Form of the answer, tools</summary>
        <${JsonField}
          label="JSON schema"
          help="The answer will be JSON of this schema."
          kind="object"
          placeholder=${SCHEMA}
          value=${settings.schema}
          onChange=${put('schema')}
        />
        <${JsonField}
          label="Tools"
          help="Functions that the model may call; you type the results."
          kind="array"
          placeholder=${TOOLS}
          value=${settings.tools}
          onChange=${put('tools')}
        />
        <${JsonField}
          label="Other fields"
          help="Added to each request as they are."
          kind="object"
          placeholder='{"chat_template_kwargs": {"enable_thinking": false}}'
          value=${settings.extra}
          onChange=${put('extra')}
        />
      </details>
      <${Presets} settings=${settings} onChoose=${change} />
      <div class="actions">
        <button type="button" class="quiet" onClick=${onClose}>Cancel</button>
        <button type="submit" class="primary" disabled=${Boolean(isBroken)}>Save</button>
      </div>
    </form>
  <//>`;
}
