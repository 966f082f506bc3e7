// Chats as a file, and back.

import * as database from './database.js';
import { addAll, newId } from './chats.js';

const FORMAT = 'llamapool-chats';
const ROLES = ['user', 'assistant', 'tool'];

// Returns all conversations, or one of them, as JSON text.
export async function exported(id = null) {
  const chosen = (await database.allConversations()).filter((one) => !id || one.id === id);
  const texts = await database.allMessages();
  const conversations = chosen.map((one) => ({
    ...one,
    messages: texts.filter((message) => message.conversation === one.id),
  }));
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

// Adds the conversations of a file beside those that are there; resolves to their number. Throws
// an error that says what is wrong with the file.
export async function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error('This file is not JSON.');
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error('This file does not hold chats that were exported here.');
  }
  const read = file.conversations.map(conversationOf);
  await addAll(
    read.map(({ conversation }) => conversation),
    read.flatMap(({ messages }) => messages),
  );
  return read.length;
}

const word = (value) => (typeof value === 'string' ? value : '');
const number = (value) => (Number.isFinite(value) ? value : Date.now());
const object = (value) =>
  value && typeof value === 'object' && !Array.isArray(value) ? value : {};

const settingsOf = ({ system, tools, schema, extra, sampling }) => ({
  system: word(system),
  tools: word(tools),
  schema: word(schema),
  extra: word(extra),
  sampling: object(sampling),
});

function figuresOf({ worker, route, ...given }) {
  const names = ['n', 'perSecond', 'ttftMs', 'prompt', 'cached', 'queueMs'];
  const numbers = names.map((name) => [name, Number.isFinite(given[name]) ? given[name] : null]);
  return { ...Object.fromEntries(numbers), worker: word(worker), route: word(route) };
}

// New ids, so that a file may be read twice, and only fields that we know.
function conversationOf(given, i) {
  if (!Array.isArray(given?.messages)) throw new Error(`Chat ${i + 1} has no messages.`);
  const ids = new Map(given.messages.map((one) => [one?.id, newId()]));
  const id = newId();
  const messages = given.messages.map((one, j) => {
    if (!ROLES.includes(one?.role) || typeof one.content !== 'string') {
      throw new Error(`Message ${j + 1} of chat ${i + 1} has no role or no text.`);
    }
    return messageOf(one, { id: ids.get(one.id), conversation: id, parent: ids.get(one.parent) });
  });
  const leaf = ids.get(given.leaf) ?? messages.at(-1)?.id ?? null;
  const conversation = {
    id,
    title: word(given.title) || 'Chat',
    createdAt: number(given.createdAt),
    updatedAt: number(given.updatedAt),
    leaf,
    settings: settingsOf(object(given.settings)),
  };
  return { conversation, messages };
}

function messageOf(given, places) {
  const attachments = (Array.isArray(given.attachments) ? given.attachments : [])
    .filter((one) => /^data:(image|audio)\//.test(word(one?.url)))
    .map(({ kind, name, url }) => ({ kind: word(kind), name: word(name), url }));
  const calls = (Array.isArray(given.toolCalls) ? given.toolCalls : [])
    .map((one) => ({ id: word(one?.id), name: word(one?.name), arguments: word(one?.arguments) }));
  return {
    ...places,
    parent: places.parent ?? null,
    role: given.role,
    content: given.content,
    createdAt: number(given.createdAt),
    state: given.state === 'running' ? 'broken' : word(given.state) || 'done',
    reasoning: word(given.reasoning),
    reasoningMs: Number(given.reasoningMs) || 0,
    model: word(given.model),
    toolCallId: word(given.toolCallId),
    ...(attachments.length ? { attachments } : {}),
    ...(calls.length ? { toolCalls: calls } : {}),
    ...(given.figures ? { figures: figuresOf(object(given.figures)) } : {}),
  };
}
