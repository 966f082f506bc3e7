// Receives answers. A run lives on when another conversation or view is shown; its text is painted
// at most 20 times a second and saved about once a second.

import { signal } from '../../index.js';
import { request, requestJson, streamError } from '../../shared/server.js';
import { events } from '../../shared/sse.js';
import * as chats from '../store/chats.js';
import { keepForReload } from '../store/rescue.js';
import { answerForRuns } from '../store/tabs.js';
import { Announcer } from '../show/announcer.js';
import { Draft } from './draft.js';
import { requestBody } from './request.js';
import { routeOfComment, routeOfHead } from './route.js';
import { model } from './server.js';

const PAINT_MS = 50;
const SAVE_MS = 1000;

// Message id to its run, while the answer comes.
export const runs = signal(new Map());
answerForRuns((id) => runs.peek().has(id));
addEventListener('pagehide', () => keepForReload([...runs.peek().values()].map((run) => run.draft.shown())));

class Run {
  constructor(conversation, message) {
    this.conversation = conversation;
    this.draft = new Draft(message);
    this.announcer = new Announcer(message.content.length);
    this.shown = signal(message);
    // { phase: 'waiting' | 'reading' | 'writing', place, waitS, progress }
    this.status = signal({ phase: 'waiting' });
    this.controller = new AbortController();
    this.route = {};
    this.paintedAt = 0;
    this.savedAt = performance.now();
    this.timer = 0;
  }

  get isOpen() {
    return chats.open.peek().id === this.conversation.id;
  }

  stop() {
    this.controller.abort();
  }

  // Lets the model end its reasoning and answer; throws if it will not.
  async endReasoning() {
    const body = { id: this.draft.id, action: 'reasoning_end' };
    const { success, message } = await requestJson('v1/chat/completions/control', { body });
    if (!success) throw new Error(message);
  }

  async receive(body) {
    const { signal: until } = this.controller;
    const response = await request('v1/chat/completions', { body, signal: until });
    this.route = routeOfHead(response.headers);
    for await (const { data, comment } of events(response)) {
      if (comment) this.hear(comment);
      if (!data) continue;
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw streamError(chunk.error);
      this.take(chunk);
    }
    if (this.draft.finish === null) throw streamError('The answer broke off.');
  }

  hear(comment) {
    this.route = routeOfComment(comment) ?? this.route;
    const place = /^queue position=(\d+)(?: wait_s=([\d.]+))?/.exec(comment);
    if (!place) return;
    const waitS = place[2] === undefined ? null : Number(place[2]);
    this.status.value = { phase: 'waiting', place: Number(place[1]), waitS };
  }

  take(chunk) {
    const progress = this.draft.take(chunk);
    if (this.draft.firstAt !== null) {
      if (this.status.peek().phase !== 'writing') this.status.value = { phase: 'writing' };
      this.plan();
    } else if (progress?.total) {
      const part = (progress.processed - progress.cache) / (progress.total - progress.cache || 1);
      this.status.value = { phase: 'reading', progress: part };
    }
  }

  plan() {
    if (this.timer) return;
    const rest = PAINT_MS - (performance.now() - this.paintedAt);
    this.timer = setTimeout(() => this.paint(), Math.max(0, rest));
  }

  paint() {
    this.timer = 0;
    this.paintedAt = performance.now();
    this.shown.value = this.draft.shown();
    if (this.isOpen) this.announcer.hear(this.draft.content);
    if (this.paintedAt - this.savedAt > SAVE_MS) this.save();
  }

  save() {
    this.savedAt = performance.now();
    chats.keep(this.draft.shown());
  }

  end(changes) {
    clearTimeout(this.timer);
    const figures = this.draft.figures(this.route);
    const told = figures.n === null && this.draft.firstAt === null ? {} : { figures };
    const message = this.draft.shown({ ...told, ...changes });
    this.shown.value = message;
    if (this.isOpen) this.announcer.end(message.content, OUTCOMES[message.state]);
    return message;
  }
}

const OUTCOMES = {
  done: 'The answer is complete.',
  length: 'The answer reached its largest length.',
  stopped: 'The answer was stopped.',
  broken: 'The answer broke off.',
  failed: 'There is no answer.',
};
const STATES = { length: 'length', tool_calls: 'done', stop: 'done' };

// Lets the model write `message`, which is the last of `path` if it is continued.
async function run(conversation, path, message, isContinued) {
  const own = new Run(conversation, { ...message, state: 'running', error: null });
  chats.markRun(message.id, () => own.stop());
  runs.value = new Map([...runs.peek(), [message.id, own]]);
  chats.put(conversation, [own.shown.peek()], { leaf: message.id });
  let changes;
  try {
    const { settings } = conversation;
    await own.receive(requestBody({ model: message.model, path, settings, isContinued }));
    changes = { state: STATES[own.draft.finish] ?? 'done', error: null };
  } catch (error) {
    changes = changesOf(error, own.draft.firstAt !== null || isContinued);
  }
  const ended = own.end(changes);
  chats.markRun(message.id, null);
  const saved = chats.put(conversation, [ended]);
  runs.value = new Map([...runs.peek()].filter(([id]) => id !== message.id));
  await saved;
}

function changesOf(error, hasText) {
  if (error.name === 'AbortError') return { state: 'stopped', error: null };
  const { message, status = null, type = '', param = null, retryAfter = null } = error;
  const told = { message, status, type, param, retryAt: retryAt(retryAfter) };
  return { state: hasText ? 'broken' : 'failed', error: told };
}

const retryAt = (seconds) => (seconds === null ? null : Date.now() + seconds * 1000);

function newMessage(role, parent, fields, { id } = chats.open.peek()) {
  const base = { id: chats.newId(), conversation: id, parent, role, createdAt: Date.now() };
  return { ...base, content: '', state: 'done', ...fields };
}

const openNow = () => chats.open.peek();

// Answers the message at the end of a path, in a branch of its own.
function answerTo(path, conversation = openNow()) {
  const message = newMessage('assistant', path.at(-1)?.id ?? null, { model: model.peek() }, conversation);
  return run(conversation, path, message, false);
}

export const pathOf = (id) => {
  const path = chats.path.peek();
  return path.slice(0, path.findIndex((one) => one.id === id) + 1);
};

// Sends what the user has written, below `parent`. Another conversation may be opened meanwhile.
export async function send(content, attachments = [], parent = openNow().leaf) {
  const conversation = openNow();
  const fields = { content, ...(attachments.length ? { attachments } : {}) };
  const message = newMessage('user', parent, fields);
  const before = parent ? pathOf(parent) : [];
  // Not awaited: what is sent next, however soon, has to find this answer there.
  const saved = chats.put(conversation, [message], { leaf: message.id });
  await Promise.all([saved, answerTo([...before, message], conversation)]);
}

// Sends the results of tool calls, by the ids of the calls.
export async function sendResults(answer, results) {
  const conversation = openNow();
  const path = pathOf(answer.id);
  let parent = answer.id;
  const added = answer.toolCalls.map(({ id, name }, i) => {
    const fields = { content: results[i], toolCallId: id, toolName: name };
    const message = newMessage('tool', parent, fields);
    message.createdAt += i;
    parent = message.id;
    return message;
  });
  const saved = chats.put(conversation, added, { leaf: parent });
  await Promise.all([saved, answerTo([...path, ...added], conversation)]);
}

// Writes the answer anew, beside the one that is there.
export const regenerate = (message) => answerTo(pathOf(message.parent));

// Goes on where an answer was stopped, cut or lost.
export const goOn = (message) => run(openNow(), pathOf(message.id), message, true);

// Tries an answer that has failed before its first token once more, in its place.
export const retry = (message) => run(openNow(), pathOf(message.parent), message, false);

// Puts a changed text beside the old one; a changed question is sent.
export async function edit(message, content) {
  if (message.role === 'user') return send(content, message.attachments, message.parent);
  const copy = newMessage('assistant', message.parent, { content, model: message.model });
  return chats.put(openNow(), [copy], { leaf: copy.id });
}
