// The conversations, and the one that is open: signals that views read, and what changes them.

import { batch, computed, signal } from '../../index.js';
import { fragment, go, view } from '../../shared/route.js';
import * as database from './database.js';
import { takeRescued } from './rescue.js';
import { isRunningElsewhere, onChange, tellChange } from './tabs.js';
import { branchOf, childrenOf, leafBelow, pathTo } from './tree.js';

export const conversations = signal([]);
// The open conversation, or one that has no message yet and is not in the list.
export const open = signal(fresh());
export const messages = signal(new Map());
export const isLoaded = signal(false);
export const storageTrouble = signal('');

export const children = computed(() => childrenOf(messages.value));
export const path = computed(() => pathTo(messages.value, open.value.leaf));

const TITLE_CHARS = 60;

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9)); // randomUUID needs https
  return Array.from(bytes, (byte) => byte.toString(36).padStart(2, '0')).join('');
}

export function fresh() {
  return { id: newId(), title: '', createdAt: 0, updatedAt: 0, leaf: null, settings: {} };
}

const byAge = (a, b) => b.updatedAt - a.updatedAt;

// What this tab has deleted: an answer that still came for it does not bring it back.
const gone = new Set();
// Writes of this tab so far, by conversation ('' are imports), and the last one.
const nWrites = new Map();
let lastWrite = Promise.resolve();

function write(changes, conversation) {
  nWrites.set(conversation, (nWrites.get(conversation) ?? 0) + 1);
  lastWrite = written(changes, conversation);
  return lastWrite;
}

async function written(changes, conversation) {
  try {
    await database.change(changes);
    storageTrouble.value = '';
  } catch (error) {
    storageTrouble.value = `This chat could not be saved: ${error?.message ?? error}`;
  }
  tellChange(conversation);
}

// Reads what is kept, and opens the conversation that the address names.
export async function load() {
  if (isLoaded.peek()) return;
  const rescued = takeRescued();
  if (rescued.length) await write({ messages: rescued }, rescued[0].conversation);
  await reloadList();
  let named;
  do {
    named = fragment.peek();
    await openChat(named);
  } while (named !== fragment.peek());
  isLoaded.value = true;
}

// Resolves to what `read` finds once this tab has written all that it has to write meanwhile:
// what is found replaces what is shown, and must not be older. `count` says what was written.
async function upToDate(read, count) {
  for (;;) {
    const before = count();
    await lastWrite;
    const found = await read();
    if (count() === before) return found;
  }
}

const allWrites = () => [...nWrites.values()].reduce((sum, n) => sum + n, 0);

async function reloadList() {
  const found = await upToDate(database.allConversations, allWrites);
  conversations.value = found.sort(byAge);
}

let nOpened = 0;

// Opens a conversation; with an unknown id, an empty one. The one that was asked for last is shown.
export async function openChat(id) {
  const number = ++nOpened;
  const { id: now, createdAt } = open.peek();
  if (id ? id === now : !createdAt) return; // it is open, or an empty one is
  const read = async () => Promise.all((await database.messagesOf(id)).map(settledLater));
  const settled = isListed(id) ? await upToDate(read, () => nWrites.get(id)) : [];
  if (number !== nOpened) return;
  const found = conversations.value.find((one) => one.id === id);
  batch(() => {
    open.value = found ?? { ...fresh(), settings: open.peek().settings };
    messages.value = new Map(found ? settled.map((one) => [one.id, one]) : []);
  });
}

const isListed = (id) => conversations.value.some((one) => one.id === id);

const own = new Map(); // answers that this tab receives, and what stops each of them
export const markRun = (id, stop) => (stop ? own.set(id, stop) : own.delete(id));

// An answer that nobody receives any more was cut by a reload or a crash.
async function settledLater(message) {
  if (message.state !== 'running' || own.has(message.id)) return message;
  return (await isRunningElsewhere(message.id)) ? message : { ...message, state: 'broken' };
}

export const startChat = () => go('chat');

// Puts messages into a conversation, open or not, and notes when it changed.
export async function put(conversation, given, changes = {}) {
  if (gone.has(conversation.id)) return;
  const added = given.filter((one) => !gone.has(one.id));
  const updated = { ...latest(conversation), ...changes, updatedAt: Date.now() };
  const isFirst = !updated.createdAt && open.value.id === updated.id;
  updated.createdAt ||= updated.updatedAt;
  updated.title ||= titleOf(added);
  batch(() => {
    const others = conversations.value.filter((one) => one.id !== updated.id);
    conversations.value = [updated, ...others].sort(byAge);
    if (open.value.id === updated.id) {
      open.value = updated;
      messages.value = new Map([...messages.value, ...added.map((one) => [one.id, one])]);
    }
  });
  if (isFirst) {
    nOpened++; // it stays open, whatever was asked for before
    if (view.peek() === 'chat') go('chat', updated.id);
  }
  await write({ conversations: [updated], messages: added }, updated.id);
}

// Keeps a message whose text is still growing, without telling anybody in this tab.
export async function keep(message) {
  const isGone = gone.has(message.id) || gone.has(message.conversation);
  if (!isGone) await write({ messages: [message] }, message.conversation);
}

const latest = (conversation) =>
  conversations.value.find((one) => one.id === conversation.id) ??
  (open.value.id === conversation.id ? open.value : conversation);

function titleOf(added) {
  const text = added.find((one) => one.role === 'user')?.content.trim() ?? '';
  const line = text.split('\n', 1)[0];
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1)}…` : line || 'Chat';
}

// Changes the settings or the title of a conversation. One without messages is not kept.
export async function amend(conversation, changes) {
  if (gone.has(conversation.id)) return;
  const updated = { ...latest(conversation), ...changes };
  batch(() => {
    if (open.value.id === updated.id) open.value = updated;
    const all = conversations.value;
    conversations.value = all.map((one) => (one.id === updated.id ? updated : one));
  });
  if (updated.createdAt) await write({ conversations: [updated] }, updated.id);
}

// Shows the branch in which a message stands.
export const showBranch = (id) =>
  amend(open.value, { leaf: leafBelow(children.value, id) });

// Deletes a message with all that follows it.
export async function removeBranch(id) {
  const removed = branchOf(children.value, id);
  const { parent } = messages.value.get(id);
  const left = new Map([...messages.value].filter(([one]) => !removed.includes(one)));
  forget(removed);
  const leaf = parent ? leafBelow(childrenOf(left), parent) : ([...left.keys()][0] ?? null);
  const { id: conversation } = open.value;
  messages.value = left;
  const amended = amend(open.value, { leaf });
  await Promise.all([amended, write({ gone: { messages: removed } }, conversation)]);
}

// Stops the answers among what is deleted, and lets nothing bring it back.
function forget(ids) {
  for (const id of ids) {
    gone.add(id);
    own.get(id)?.();
  }
}

export async function removeChat(id) {
  gone.add(id);
  conversations.value = conversations.value.filter((one) => one.id !== id);
  if (open.value.id === id) {
    open.value = fresh();
    messages.value = new Map();
    startChat();
  }
  await lastWrite; // then all of its messages are found
  const removed = (await database.messagesOf(id)).map((one) => one.id);
  forget(removed);
  await write({ gone: { conversations: [id], messages: removed } }, id);
}

// Adds conversations with their messages, as an import has them.
export async function addAll(added, texts) {
  await write({ conversations: added, messages: texts }, '');
  await reloadList();
}

// Returns the ids of the conversations in which every word of a text stands.
export async function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = new Map(conversations.value.map((one) => [one.id, [one.title.toLowerCase()]]));
  for (const one of await database.allMessages()) {
    texts.get(one.conversation)?.push(one.content.toLowerCase());
  }
  const has = (parts) => words.every((word) => parts.some((part) => part.includes(word)));
  return new Set([...texts].filter(([, parts]) => has(parts)).map(([id]) => id));
}

// Whether a message looks as before: then it is not rendered anew.
const isSame = (a, b) => ['content', 'reasoning', 'state'].every((name) => a[name] === b[name]);

onChange(async ({ conversation }) => {
  await reloadList();
  const isOpen = () => open.value.id === conversation && isListed(conversation);
  if (!isOpen()) return; // if deleted in the other tab: what is shown here stays until one leaves it
  const read = () => database.messagesOf(conversation);
  const listed = await upToDate(read, () => nWrites.get(conversation));
  if (!isOpen()) return;
  const found = conversations.value.find((one) => one.id === conversation);
  const kept = messages.value;
  const shown = (one) => {
    const old = kept.get(one.id);
    return old && (own.has(one.id) || isSame(old, one)) ? old : one;
  };
  batch(() => {
    messages.value = new Map(listed.map((one) => [one.id, shown(one)]));
    const isBusy = path.value.some((one) => own.has(one.id));
    open.value = isBusy ? { ...found, leaf: open.value.leaf } : found;
  });
});
