// Where the next message is written.

import { html, signal, useEffect, useLayoutEffect, useRef } from '../../index.js';
import { Icon, IconButton } from '../../shared/icons.js';
import { isLoaded, open, path } from '../store/chats.js';
import { runs, send } from '../run/run.js';
import { model, models } from '../run/server.js';
import {
  accepted, attach, attachmentTrouble, attachments, detach, nReading, takeAttachments,
} from './attachments.js';

// What is written and not yet sent, by conversation; under '' before it is known which one opens.
const drafts = signal(new Map());
const draftOf = (id) => drafts.value.get(id) ?? '';
const write = (id, text) => {
  drafts.value = new Map([...drafts.peek(), [id, text]]);
};

const runHere = () => path.value.map(({ id }) => runs.value.get(id)).find(Boolean);

function Model() {
  if (models.value.length < 2) return html`<span class="model">${models.value[0] ?? ''}</span>`;
  const choose = (event) => {
    model.value = event.target.value;
  };
  return html`<select class="model" aria-label="Model" onChange=${choose}>
    ${models.value.map((id) => html`<option value=${id} selected=${id === model.value}>${id}</option>`)}
  </select>`;
}

function Attached() {
  const listed = attachments.value;
  if (!listed.length && !attachmentTrouble.value) return null;
  return html`<ul class="attached">
    ${listed.map(
      ({ kind, name, url }, i) => html`<li>
        ${kind === 'image' ? html`<img src=${url} alt=${name} />` : html`<span>${name}</span>`}
        <${IconButton} icon="close" label=${`Remove ${name}`} onClick=${() => detach(i)} />
      </li>`,
    )}
    ${attachmentTrouble.value && html`<li class="refused" role="alert">${attachmentTrouble.value}</li>`}
  </ul>`;
}

function AttachButton() {
  const field = useRef(null);
  const kinds = accepted();
  if (!kinds) return null;
  const take = (event) => {
    attach([...event.target.files]);
    event.target.value = '';
  };
  return html`
    <input ref=${field} type="file" accept=${kinds} multiple hidden onChange=${take} />
    <${IconButton} icon="attach" label="Attach" onClick=${() => field.current.click()} />
  `;
}

function SendOrStop({ run, isEmpty }) {
  // Two buttons, so that a click meant for one never hits the other.
  if (run) {
    return html`<button
      key="stop"
      type="button"
      class="primary round"
      aria-label="Stop"
      title="Stop (Escape)"
      onClick=${() => run.stop()}
    >
      <${Icon} name="stop" />
    </button>`;
  }
  return html`<button
    key="send"
    type="submit"
    class="primary round"
    aria-label="Send"
    title="Send (Enter)"
    disabled=${isEmpty}
  >
    <${Icon} name="send" />
  </button>`;
}

// Files that are dropped anywhere on the page are attached.
function useDrops() {
  useEffect(() => {
    const allow = (event) => {
      if (event.dataTransfer?.types.includes('Files')) event.preventDefault();
    };
    const drop = (event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      attach([...event.dataTransfer.files]);
    };
    document.addEventListener('dragover', allow);
    document.addEventListener('drop', drop);
    return () => {
      document.removeEventListener('dragover', allow);
      document.removeEventListener('drop', drop);
    };
  }, []);
}

// Escape stops the answer wherever the focus is; where it closes something, it does only that.
function useEscape(run) {
  useEffect(() => {
    if (!run) return undefined;
    const stop = (event) => {
      const closes = event.defaultPrevented || document.querySelector('dialog[open]');
      if (event.key === 'Escape' && !event.isComposing && !closes) run.stop();
    };
    document.addEventListener('keydown', stop);
    return () => document.removeEventListener('keydown', stop);
  }, [run]);
}

export function Composer({ onSettings }) {
  const field = useRef(null);
  const shown = useRef('');
  const id = isLoaded.value ? open.value.id : '';
  const text = draftOf(id);
  const run = runHere();
  useDrops();
  useEscape(run);
  useLayoutEffect(() => {
    const early = drafts.peek().get('');
    if (!id || !early) return;
    write('', '');
    write(id, early);
  }, [id]);
  useEffect(() => {
    const isFirst = !shown.current;
    shown.current = id;
    if (isFirst && document.activeElement !== document.body) return; // chats load while people act
    if (matchMedia('(hover: hover)').matches) field.current.focus(); // no keyboard over a phone
  }, [id]);
  useLayoutEffect(() => {
    field.current.style.height = 'auto';
    field.current.style.height = `${field.current.scrollHeight + 2}px`;
  }, [text]);
  const submit = (event) => {
    event.preventDefault();
    if (run || nReading.peek() || (!text.trim() && !attachments.peek().length)) return;
    write(id, '');
    send(text, takeAttachments());
  };
  const onKeyDown = (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) submit(event);
  };
  const onPaste = (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    attach(files);
  };
  return html`<form class="composer" onSubmit=${submit}>
    <${Attached} />
    <textarea
      ref=${field}
      rows="1"
      placeholder="Write a message"
      aria-label="Message"
      value=${text}
      onInput=${(event) => write(id, event.target.value)}
      onKeyDown=${onKeyDown}
      onPaste=${onPaste}
    ></textarea>
    <div class="composer-row">
      <${AttachButton} />
      <${IconButton} icon="settings" label="Settings of this chat" onClick=${onSettings} />
      <${Model} />
      <${SendOrStop} run=${run} isEmpty=${nReading.value > 0 || (!text.trim() && !attachments.value.length)} />
    </div>
  </form>`;
}
