// The conversations, and the one that is open: signals that views read, and what changes them.

import { batch, computed, signal } from '../../shared/ui.js';
import { fragment, go } from '../../shared/route.js';
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

async function write(changes, conversation) {
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
  const rescued = takeRescued();
  if (rescued.length) await write({ messages: rescued }, rescued[0].conversation);
  await reloadList();
  if (!open.peek().createdAt) await openChat(fragment.value); // else something was sent already
  isLoaded.value = true;
}

async function reloadList() {
  conversations.value = (await database.allConversations()).sort(byAge);
}

// Opens a conversation; with an unknown id, an empty one.
export async function openChat(id) {
  const { id: now, createdAt } = open.peek();
  if (id ? id === now : !createdAt) return; // it is open, or an empty one is
  const found = conversations.value.find((one) => one.id === id);
  const listed = found ? await database.messagesOf(id) : [];
  const settled = await Promise.all(listed.map(settledLater));
  batch(() => {
    open.value = found ?? { ...fresh(), settings: open.peek().settings };
    messages.value = new Map(settled.map((one) => [one.id, one]));
  });
}

const own = new Set(); // answers that this tab receives
export const runsHere = (id) => own.has(id);
export const markRun = (id, isOn) => (isOn ? own.add(id) : own.delete(id));

// An answer that nobody receives any more was cut by a reload or a crash.
async function settledLater(message) {
  if (message.state !== 'running' || own.has(message.id)) return message;
  return (await isRunningElsewhere(message.id)) ? message : { ...message, state: 'broken' };
}

export const startChat = () => go('chat');

// Puts messages into a conversation, open or not, and notes when it changed.
export async function put(conversation, added, changes = {}) {
  const updated = { ...latest(conversation), ...changes, updatedAt: Date.now() };
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
  await write({ conversations: [updated], messages: added }, updated.id);
}

// Keeps a message whose text is still growing, without telling anybody in this tab.
export const keep = (message) => write({ messages: [message] }, message.conversation);

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
  const gone = branchOf(children.value, id);
  const { parent } = messages.value.get(id);
  const left = new Map([...messages.value].filter(([one]) => !gone.includes(one)));
  const leaf = parent ? leafBelow(childrenOf(left), parent) : ([...left.keys()][0] ?? null);
  messages.value = left;
  await amend(open.value, { leaf });
  await write({ gone: { messages: gone } }, open.value.id);
}

export async function removeChat(id) {
  const gone = (await database.messagesOf(id)).map((one) => one.id);
  conversations.value = conversations.value.filter((one) => one.id !== id);
  if (open.value.id === id) {
    open.value = fresh();
    messages.value = new Map();
    startChat();
  }
  await write({ gone: { conversations: [id], messages: gone } }, id);
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

onChange(async ({ conversation }) => {
  await reloadList();
  if (conversation !== open.value.id) return;
  const found = conversations.value.find((one) => one.id === conversation);
  if (!found) return; // deleted in the other tab: what is shown here stays until one leaves it
  const listed = await database.messagesOf(conversation);
  const kept = messages.value;
  batch(() => {
    messages.value = new Map(
      listed.map((one) => [one.id, own.has(one.id) ? (kept.get(one.id) ?? one) : one]),
    );
    const isBusy = path.value.some((one) => own.has(one.id));
    open.value = isBusy ? { ...found, leaf: open.value.leaf } : found;
  });
});
