// Which view the address names, and going from one to another without loading the page anew.

import { signal } from './ui.js';
import { ROOT } from './root.js';

const VIEWS = ['pool'];
const viewOf = (path) => {
  const name = path.slice(new URL(ROOT).pathname.length);
  return VIEWS.includes(name) ? name : 'chat';
};

// 'chat' or 'pool'.
export const view = signal(viewOf(location.pathname));
// What stands behind `#` in the address; the chat keeps there which conversation is open.
export const fragment = signal(location.hash.slice(1));

addEventListener('popstate', follow);
addEventListener('hashchange', follow);

function follow() {
  view.value = viewOf(location.pathname);
  fragment.value = location.hash.slice(1);
}

export const pathOf = (name) => new URL(name === 'chat' ? './' : name, ROOT).href;

// Goes to a view, and there to what `place` names.
export function go(name, place = '') {
  history.pushState(null, '', pathOf(name) + (place ? `#${place}` : ''));
  follow();
}

// For links: a plain click goes without loading the page; with a modifier the browser decides.
export const goOnClick = (name) => (event) => {
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(name);
};
