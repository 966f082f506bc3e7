// One message: what was said, what can be done with it, and how it came about.

import { Component, html, useState } from '../../index.js';
import { Dialog } from '../../shared/dialog.js';
import { IconButton } from '../../shared/icons.js';
import { children, messages, path, removeBranch, showBranch } from '../store/chats.js';
import { branchOf } from '../store/tree.js';
import { edit, goOn, regenerate, runs } from '../run/run.js';
import { copyBy } from './clipboard.js';
import { Figures } from './figures.js';
import { Reasoning } from './reasoning.js';
import { Markdown, Plain } from './text.js';
import { ToolCalls, ToolResult } from './tool_calls.js';
import { Trouble, Waiting } from './trouble.js';

function Branches({ message }) {
  const all = children.value.get(messages.value.has(message.parent) ? message.parent : null) ?? [];
  if (all.length < 2) return null;
  const at = all.indexOf(message.id);
  const to = (i) => () => showBranch(all[i]);
  return html`<span class="branches" role="group" aria-label="Versions">
    <${IconButton} icon="back" label="Version before" disabled=${at === 0} onClick=${to(at - 1)} />
    <span aria-label=${`Version ${at + 1} of ${all.length}`} role="img">${at + 1}/${all.length}</span>
    <${IconButton}
      icon="forward"
      label="Next version"
      disabled=${at === all.length - 1}
      onClick=${to(at + 1)}
    />
  </span>`;
}

function Editor({ message, onEnd }) {
  const [text, write] = useState(message.content);
  const save = (event) => {
    event.preventDefault();
    onEnd();
    if (text.trim() && text !== message.content) edit(message, text);
  };
  const onKeyDown = (event) => {
    if (event.key === 'Escape') {
      event.preventDefault();
      onEnd();
    }
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) save(event);
  };
  const isQuestion = message.role === 'user';
  return html`<form class="editor" onSubmit=${save}>
    <textarea
      ref=${(field) => field?.dataset.started || field?.focus()}
      aria-label="Text of the message"
      value=${text}
      rows=${Math.min(16, text.split('\n').length + 1)}
      onInput=${(event) => write(event.target.value)}
      onFocus=${(event) => (event.target.dataset.started = '1')}
      onKeyDown=${onKeyDown}
    ></textarea>
    <div class="actions">
      <button type="button" class="quiet" onClick=${onEnd}>Cancel</button>
      <button type="submit" class="primary">${isQuestion ? 'Send as a new version' : 'Keep as a new version'}</button>
    </div>
  </form>`;
}

function Attachments({ list }) {
  return html`<div class="attachments">
    ${list.map(({ kind, name, url }) =>
      kind === 'image'
        ? html`<img src=${url} alt=${name || 'Attached picture'} />`
        : html`<audio controls src=${url} aria-label=${name || 'Attached sound'}></audio>`,
    )}
  </div>`;
}

function DeleteDialog({ message, onClose }) {
  const n = branchOf(children.value, message.id).length;
  const what = n > 1 ? `This message and the ${n - 1} that follow it` : 'This message';
  const remove = () => {
    onClose();
    removeBranch(message.id);
  };
  return html`<${Dialog} title="Delete?" onClose=${onClose} kind="narrow">
    <p>${what} will be gone.</p>
    <div class="actions">
      <button type="button" class="quiet" onClick=${onClose}>Keep</button>
      <button type="button" class="danger" onClick=${remove}>Delete</button>
    </div>
  <//>`;
}

function Actions({ message, run, onEdit }) {
  const [isAsked, ask] = useState(false);
  if (run || message.state === 'running') return null;
  const isAnswer = message.role === 'assistant';
  const canGoOn = isAnswer && ['stopped', 'length', 'broken'].includes(message.state);
  const hasText = Boolean(message.content || message.reasoning);
  return html`<div class="message-actions">
    <${Branches} message=${message} />
    ${message.content &&
    html`<${IconButton}
      icon="copy"
      label="Copy"
      onClick=${(event) => copyBy(event.currentTarget, message.content)}
    />`}
    ${isAnswer &&
    messages.value.has(message.parent) &&
    html`<${IconButton} icon="redo" label="Regenerate" onClick=${() => regenerate(message)} />`}
    <${IconButton} icon="edit" label="Edit" onClick=${onEdit} />
    <${IconButton} icon="trash" label="Delete from here" onClick=${() => ask(true)} />
    ${isAsked && html`<${DeleteDialog} message=${message} onClose=${() => ask(false)} />`}
    ${canGoOn &&
    hasText &&
    html`<button type="button" class="quiet go-on" onClick=${() => goOn(message)}>Continue</button>`}
  </div>`;
}

function Answer({ message, run }) {
  const isAnswered = path.value.at(-1)?.id !== message.id;
  const status = run?.status.value;
  return html`
    ${message.reasoning && html`<${Reasoning} message=${message} run=${run} />`}
    ${message.content && html`<${Markdown} text=${message.content} isWhole=${!run} />`}
    ${message.toolCalls &&
    html`<${ToolCalls} message=${message} isAnswered=${isAnswered} isLive=${Boolean(run)} />`}
    ${status && status.phase !== 'writing' && html`<${Waiting} status=${status} />`}
    ${!run && message.state === 'broken' && !message.error && html`<p class="note">The answer broke off.</p>`}
    ${!run && message.error && html`<${Trouble} message=${message} />`}
  `;
}

const NOTES = {
  stopped: 'Stopped.',
  length: 'Cut at the largest length.',
  running: 'Being written in another tab.',
};
const ROLE_NAMES = { user: 'You', assistant: 'Answer', tool: 'Tool' };

function Shown({ message: given }) {
  const [isEdited, setEdited] = useState(false);
  const run = runs.value.get(given.id);
  const message = run ? run.shown.value : given;
  const { role } = message;
  return html`<article class=${`message ${role}`} aria-label=${ROLE_NAMES[role]} data-id=${message.id}>
    <div class="message-body">
      ${message.attachments && html`<${Attachments} list=${message.attachments} />`}
      ${isEdited && html`<${Editor} message=${message} onEnd=${() => setEdited(false)} />`}
      ${!isEdited && role === 'user' && message.content && html`<${Plain} text=${message.content} />`}
      ${!isEdited && role === 'assistant' && html`<${Answer} message=${message} run=${run} />`}
      ${role === 'tool' && html`<${ToolResult} message=${message} />`}
    </div>
    ${!isEdited && !run && NOTES[message.state] && html`<p class="note">${NOTES[message.state]}</p>`}
    ${!isEdited && !run && message.figures && html`<${Figures} figures=${message.figures} />`}
    ${!isEdited && html`<${Actions} message=${message} run=${run} onEdit=${() => setEdited(true)} />`}
  </article>`;
}

// Rendered anew only when its own message changes, or what it reads of signals.
export class Message extends Component {
  shouldComponentUpdate(next) {
    return next.message !== this.props.message;
  }

  render({ message }) {
    return html`<${Shown} message=${message} />`;
  }
}
