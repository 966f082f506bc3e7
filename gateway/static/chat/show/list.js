// The messages of the open branch. The last ones are shown at once, older ones in idle moments, so
// that a long chat opens without a pause and is there as a whole for searching in the page.

import { html, useEffect, useLayoutEffect, useRef, useState } from '../../index.js';
import { open, path } from '../store/chats.js';
import { runs } from '../run/run.js';
import { Message } from './message.js';

const FIRST = 12;
const MORE = 12;
const NEAR_PX = 80;

const later = globalThis.requestIdleCallback ?? ((work) => setTimeout(work, 16));
const cancel = globalThis.cancelIdleCallback ?? clearTimeout;

function useShownCount(id, total) {
  const [shown, show] = useState({ id, n: FIRST });
  const n = shown.id === id ? shown.n : FIRST;
  useEffect(() => {
    if (n >= total) return undefined;
    const plan = later(() => show({ id, n: n + MORE }));
    return () => cancel(plan);
  }, [id, n, total]);
  return n;
}

// Keeps the end in view as long as the user has not scrolled away from it.
function useFollowing(scroller, id) {
  const follows = useRef(true);
  const toEnd = () => {
    const box = scroller.current;
    if (follows.current && box) box.scrollTop = box.scrollHeight;
  };
  useLayoutEffect(() => {
    const box = scroller.current;
    const content = box.firstElementChild;
    const onScroll = () => {
      follows.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_PX;
    };
    const watcher = new ResizeObserver(toEnd);
    watcher.observe(content);
    watcher.observe(box);
    box.addEventListener('scroll', onScroll, { passive: true });
    return () => {
      watcher.disconnect();
      box.removeEventListener('scroll', onScroll);
    };
  }, []);
  useLayoutEffect(() => {
    follows.current = true;
    toEnd();
  }, [id]);
  return () => {
    follows.current = true;
    toEnd();
  };
}

export function MessageList() {
  const scroller = useRef(null);
  const { id } = open.value;
  const all = path.value;
  const n = useShownCount(id, all.length);
  const follow = useFollowing(scroller, id);
  const last = all.at(-1)?.id;
  const isLive = runs.value.has(last);
  useLayoutEffect(() => {
    if (isLive) follow();
  }, [last, isLive]);
  const shown = all.slice(-n);
  return html`<div class="scroller" ref=${scroller} tabindex="0" role="region" aria-label="Messages">
    <div class="messages">
      ${shown.map((message) => html`<${Message} key=${message.id} message=${message} />`)}
    </div>
  </div>`;
}
