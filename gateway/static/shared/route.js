// Which view the address names, and going from one to another without loading the page anew.

import { signal } from '../index.js';
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

// Where one was last in each view.
const places = {};

function follow() {
  view.value = viewOf(location.pathname);
  fragment.value = location.hash.slice(1);
  places[view.value] = fragment.value;
}
follow();

export const pathOf = (name) => new URL(name === 'chat' ? './' : name, ROOT).href;

// Goes to a view, and there to what `place` names.
export function go(name, place = '') {
  history.pushState(null, '', pathOf(name) + (place ? `#${place}` : ''));
  follow();
}

// Goes to where one was last in a view.
export const goBack = (name) => go(name, places[name]);

// For links: a plain click goes without loading the page; with a modifier the browser decides.
export const onPlainClick = (call) => (event) => {
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  call();
};
