// Asks for a new title, and before a chat is deleted.

import { html, useState } from '../../index.js';
import { Dialog } from '../../shared/dialog.js';

export function RenameDialog({ chat, onClose, onSave }) {
  const [title, write] = useState(chat.title);
  const save = (event) => {
    event.preventDefault();
    if (title.trim()) onSave(title.trim());
    onClose();
  };
  return html`<${Dialog} title="Rename the chat" onClose=${onClose} kind="narrow">
    <form onSubmit=${save}>
      <input aria-label="Title" maxlength="200" value=${title} onInput=${(event) => write(event.target.value)} />
      <div class="actions">
        <button type="button" class="quiet" onClick=${onClose}>Cancel</button>
        <button type="submit" class="primary">Rename</button>
      </div>
    </form>
  <//>`;
}

export function DeleteDialog({ chat, onClose, onDelete }) {
  const remove = () => {
    onDelete();
    onClose();
  };
  return html`<${Dialog} title="Delete this chat?" onClose=${onClose} kind="narrow">
    <p>“${chat.title}” will be gone from this browser. Nobody else has it.</p>
    <div class="actions">
      <button type="button" class="quiet" onClick=${onClose}>Keep it</button>
      <button type="button" class="danger" onClick=${remove}>Delete</button>
    </div>
  <//>`;
}
