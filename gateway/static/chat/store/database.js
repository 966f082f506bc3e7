// The chats that this browser keeps, in IndexedDB. If that is off (some private windows), they live
// as long as the page.

import { ROOT } from '../../shared/root.js';

const NAME = `llamapool:${new URL(ROOT).pathname}`;
const memory = { conversations: new Map(), messages: new Map() };

let opened = null;

const promised = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

function database() {
  opened ??= (async () => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore('conversations', { keyPath: 'id' });
      const messages = request.result.createObjectStore('messages', { keyPath: 'id' });
      messages.createIndex('conversation', 'conversation');
    };
    const found = await promised(request);
    found.onversionchange = () => found.close();
    return found;
  })().catch(() => null);
  return opened;
}

async function reading(store, fromDisk, fromMemory) {
  const found = await database();
  return found ? promised(fromDisk(found.transaction(store).objectStore(store))) : fromMemory();
}

export const allConversations = () =>
  reading('conversations', (store) => store.getAll(), () => [...memory.conversations.values()]);

export const messagesOf = (conversation) =>
  reading(
    'messages',
    (store) => store.index('conversation').getAll(conversation),
    () => [...memory.messages.values()].filter((one) => one.conversation === conversation),
  );

export const allMessages = () =>
  reading('messages', (store) => store.getAll(), () => [...memory.messages.values()]);

// Writes and deletes in one transaction: all of it happens, or nothing.
export async function change({ conversations = [], messages = [], gone = {} }) {
  const found = await database();
  if (!found) {
    conversations.forEach((one) => memory.conversations.set(one.id, one));
    messages.forEach((one) => memory.messages.set(one.id, one));
    (gone.conversations ?? []).forEach((id) => memory.conversations.delete(id));
    (gone.messages ?? []).forEach((id) => memory.messages.delete(id));
    return;
  }
  const transaction = found.transaction(['conversations', 'messages'], 'readwrite');
  const [chats, texts] = ['conversations', 'messages'].map((one) => transaction.objectStore(one));
  conversations.forEach((one) => chats.put(one));
  messages.forEach((one) => texts.put(one));
  (gone.conversations ?? []).forEach((id) => chats.delete(id));
  (gone.messages ?? []).forEach((id) => texts.delete(id));
  transaction.commit(); // without it a reload before the next turn of this page may undo it all
  await new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}
