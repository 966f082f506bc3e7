// What stands around every view: the way between them, the key, the theme.

import { html, useEffect, useState } from '../index.js';
import { IconButton } from './icons.js';
import { KeyDialog, isKeyDialogOpen } from './key.js';
import { goBack, onPlainClick, pathOf, view } from './route.js';
import { isKeyNeeded } from './server.js';
import { theme } from './stored.js';

// Each module exports its component as `default`; it is fetched when it is shown first.
const VIEWS = {
  chat: { title: 'Chat', load: () => import('../chat/view.js') },
  pool: { title: 'Pool', load: () => import('../pool/view.js') },
};

const NEXT_THEME = { '': 'light', light: 'dark', dark: '' };
const THEME_ICONS = { '': 'auto', light: 'sun', dark: 'moon' };
const THEME_NAMES = { '': 'as the system', light: 'light', dark: 'dark' };

function Header() {
  const links = Object.entries(VIEWS).map(
    ([name, { title }]) => html`<a
      href=${pathOf(name)}
      aria-current=${view.value === name ? 'page' : null}
      onClick=${onPlainClick(() => view.value !== name && goBack(name))}
    >
      ${title}
    </a>`,
  );
  return html`<header class="shell-header">
    <span class="brand">llamapool</span>
    <nav aria-label="Views">${links}</nav>
    <div class="shell-actions">
      <${IconButton}
        icon="key"
        label="API key"
        onClick=${() => {
          isKeyDialogOpen.value = true;
        }}
      />
      <${IconButton}
        icon=${THEME_ICONS[theme.value]}
        label=${`Theme: ${THEME_NAMES[theme.value]}`}
        onClick=${() => {
          theme.value = NEXT_THEME[theme.value];
        }}
      />
    </div>
  </header>`;
}

function View({ name }) {
  const [shown, show] = useState({ name: '', component: null, error: '' });
  useEffect(() => {
    document.title = name === 'chat' ? 'llamapool' : `${VIEWS[name].title} – llamapool`;
    // A view that arrives after the user has gone on to another must not take its place.
    let isWanted = true;
    VIEWS[name].load().then(
      (module) => isWanted && show({ name, component: module.default, error: '' }),
      (error) => {
        console.error(error);
        if (isWanted) show({ name, component: null, error: 'This part could not be loaded.' });
      },
    );
    return () => {
      isWanted = false;
    };
  }, [name]);
  if (shown.name !== name) return null;
  if (shown.error) {
    return html`<main class="broken">
      <p role="alert">${shown.error}</p>
      <button type="button" onClick=${() => location.reload()}>Load the page again</button>
    </main>`;
  }
  return html`<${shown.component} />`;
}

export function Shell() {
  const isKeyAsked = isKeyDialogOpen.value || isKeyNeeded.value;
  return html`<div class="shell" data-view=${view.value}>
    <${Header} />
    <${View} name=${view.value} />
    ${isKeyAsked && html`<${KeyDialog} />`}
  </div>`;
}
