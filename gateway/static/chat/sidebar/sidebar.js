// The conversations: find, open, rename, delete, export, import.

import { html, useEffect, useRef, useState } from '../../index.js';
import { IconButton, Icon } from '../../shared/icons.js';
import { go, onPlainClick, pathOf } from '../../shared/route.js';
import { amend, conversations, open, removeChat, search, storageTrouble } from '../store/chats.js';
import { exported, imported } from '../store/transfer.js';
import { DeleteDialog, RenameDialog } from './dialogs.js';

const SEARCH_MS = 150;

// Returns the ids of the conversations that a text finds, or null for all.
function useSearch(text) {
  const [found, put] = useState(null);
  useEffect(() => {
    if (!text.trim()) {
      put(null);
      return undefined;
    }
    let isOver = false;
    const timer = setTimeout(async () => {
      const ids = await search(text);
      if (!isOver) put(ids);
    }, SEARCH_MS);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [text, conversations.value]);
  return text.trim() ? found : null;
}

function save(text, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const exportAll = async () => save(await exported(), 'llamapool-chats.json');

function Chat({ chat, onAsk }) {
  const isOpen = open.value.id === chat.id;
  return html`<li class=${isOpen ? 'is-open' : ''}>
    <a href=${`${pathOf('chat')}#${chat.id}`} aria-current=${isOpen ? 'true' : null} onClick=${onPlainClick(() => go('chat', chat.id))}>
      ${chat.title}
    </a>
    <span class="chat-actions">
      <${IconButton} icon="edit" label=${`Rename ${chat.title}`} onClick=${() => onAsk('rename', chat)} />
      <${IconButton} icon="trash" label=${`Delete ${chat.title}`} onClick=${() => onAsk('delete', chat)} />
    </span>
  </li>`;
}

function Transfer() {
  const field = useRef(null);
  const [told, tell] = useState('');
  const take = async (event) => {
    const [file] = event.target.files;
    event.target.value = '';
    try {
      const n = await imported(await file.text());
      tell(n === 1 ? 'One chat was added.' : `${n} chats were added.`);
    } catch (error) {
      tell(error.message);
    }
  };
  return html`<div class="transfer">
    <button type="button" class="quiet" onClick=${exportAll} disabled=${!conversations.value.length}>
      <${Icon} name="export" />Export
    </button>
    <button type="button" class="quiet" onClick=${() => field.current.click()}>
      <${Icon} name="import" />Import
    </button>
    <input ref=${field} type="file" accept="application/json,.json" hidden onChange=${take} />
    <p role="status">${told || storageTrouble.value}</p>
  </div>`;
}

export function Sidebar() {
  const [text, write] = useState('');
  const [asked, ask] = useState(null);
  const found = useSearch(text);
  const shown = conversations.value.filter((one) => !found || found.has(one.id));
  const onAsk = (what, chat) => ask({ what, chat });
  const close = () => ask(null);
  return html`<nav class="sidebar" aria-label="Chats">
    <a class="new-chat" href=${pathOf('chat')} onClick=${onPlainClick(() => go('chat'))}>
      <${Icon} name="plus" />New chat
    </a>
    ${conversations.value.length > 0 &&
    html`<input
      type="search"
      placeholder="Search"
      aria-label="Search in all chats"
      value=${text}
      onInput=${(event) => write(event.target.value)}
    />`}
    <ul class="chats">
      ${shown.map((chat) => html`<${Chat} key=${chat.id} chat=${chat} onAsk=${onAsk} />`)}
    </ul>
    ${text && !shown.length && html`<p class="muted nothing">Nothing found.</p>`}
    <${Transfer} />
    ${asked?.what === 'rename' &&
    html`<${RenameDialog} chat=${asked.chat} onClose=${close} onSave=${(title) => amend(asked.chat, { title })} />`}
    ${asked?.what === 'delete' &&
    html`<${DeleteDialog} chat=${asked.chat} onClose=${close} onDelete=${() => removeChat(asked.chat.id)} />`}
  </nav>`;
}
