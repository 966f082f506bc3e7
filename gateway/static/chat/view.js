// The chat: conversations at the side, the open one, and where one writes.

import { html, signal, useEffect, useState } from '../index.js';
import { IconButton } from '../shared/icons.js';
import { fragment } from '../shared/route.js';
import { stored } from '../shared/stored.js';
import { Composer } from './compose/composer.js';
import { props, serverTrouble, watchServer } from './run/server.js';
import { SettingsDialog } from './settings/dialog.js';
import { startWith } from './settings/initial.js';
import { said } from './show/announcer.js';
import { MessageList } from './show/list.js';
import { Sidebar } from './sidebar/sidebar.js';
import { isLoaded, load, open, openChat, path } from './store/chats.js';

const isSidebarWide = stored('sidebar', true);
const isDrawerOpen = signal(false);
const isNarrow = matchMedia('(max-width: 48rem)');

function toggleSidebar() {
  if (isNarrow.matches) isDrawerOpen.value = !isDrawerOpen.value;
  else isSidebarWide.value = !isSidebarWide.value;
}

// Opens the conversation that the address names.
function useAddress() {
  useEffect(() => {
    isDrawerOpen.value = false;
    // Also if it is open: another one may be about to come. Effects run late: the address may have
    // changed again.
    if (isLoaded.peek()) openChat(fragment.peek());
  }, [fragment.value]);
}

function Welcome() {
  return html`<div class="welcome">
    <h1>What is on your mind?</h1>
    <p class="muted">Chats stay in this browser.</p>
  </div>`;
}

export default function Chat() {
  const [hasSettings, showSettings] = useState(false);
  useEffect(() => {
    load();
    return watchServer();
  }, []);
  useEffect(() => startWith(props.value), [props.value]);
  useAddress();
  const isEmpty = isLoaded.value && !path.value.length;
  const onKeyDown = (event) => {
    if (event.key !== 'Escape' || !isDrawerOpen.value) return;
    event.preventDefault();
    isDrawerOpen.value = false;
  };
  return html`<div
    class="chat"
    data-sidebar=${isSidebarWide.value ? 'wide' : 'gone'}
    data-drawer=${isDrawerOpen.value ? 'open' : 'closed'}
    onKeyDown=${onKeyDown}
  >
    <${Sidebar} />
    <div class="drawer-shade" onClick=${toggleSidebar}></div>
    <main class=${isEmpty ? 'is-empty' : ''}>
      <div class="chat-bar">
        <${IconButton} icon="menu" label="Chats" onClick=${toggleSidebar} />
        ${open.value.title && html`<h1 class="title">${open.value.title}</h1>`}
      </div>
      ${isEmpty ? html`<${Welcome} />` : html`<${MessageList} />`}
      ${serverTrouble.value && html`<p class="server-trouble" role="status">${serverTrouble.value}</p>`}
      <${Composer} onSettings=${() => showSettings(true)} />
      <p class="read-aloud" aria-live="polite">${said.value}</p>
    </main>
    ${hasSettings && html`<${SettingsDialog} onClose=${() => showSettings(false)} />`}
  </div>`;
}
