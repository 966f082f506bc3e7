// Requests to the server that this page comes from, and what went wrong with them, in plain words.

import { ROOT } from './root.js';
import { apiKey } from './stored.js';
import { signal } from '../index.js';

// Whether the server has refused us for want of a key; the shell then asks for one.
export const isKeyNeeded = signal(false);

// What the server answered instead, or why it could not be asked. `status` is 0 without an answer.
export class RequestError extends Error {
  constructor(message, { status = 0, type = '', param = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { name: 'RequestError', status, type, param, retryAfter });
  }

  // Whether the same request may succeed later.
  get isPassing() {
    return this.status === 0 || this.status === 429 || this.status === 502 || this.status === 503;
  }
}

// Sends a request; resolves to the response if the server accepted it, else throws `RequestError`.
// A `body` that is not FormData goes as JSON. Aborting throws AbortError, as with fetch.
export async function request(path, { method, body, signal: until, headers } = {}) {
  const isForm = body instanceof FormData;
  const key = apiKey.peek();
  const response = await fetch(new URL(path, ROOT), {
    method: method ?? (body === undefined ? 'GET' : 'POST'),
    headers: {
      ...(body === undefined || isForm ? {} : { 'Content-Type': 'application/json' }),
      ...(key ? { Authorization: `Bearer ${key}` } : {}),
      ...headers,
    },
    body: body === undefined || isForm ? body : JSON.stringify(body),
    signal: until,
    credentials: 'same-origin',
  }).catch((error) => {
    if (error.name === 'AbortError') throw error;
    throw new RequestError('The server cannot be reached.');
  });
  if (response.ok) return response;
  // If another key was typed meanwhile, this says nothing of that one.
  if (response.status === 401 && key === apiKey.peek()) isKeyNeeded.value = true;
  throw await refusal(response);
}

// Sends a request and resolves to the decoded JSON of the answer.
export async function requestJson(path, options) {
  return (await request(path, options)).json();
}

async function refusal(response) {
  const { status } = response;
  const body = await response.json().catch(() => null);
  const { message, type, param } = errorOf(body, status);
  const seconds = Number.parseInt(response.headers.get('Retry-After') ?? '', 10);
  const retryAfter = Number.isFinite(seconds) ? seconds : null;
  return new RequestError(message, { status, type, param, retryAfter });
}

function errorOf(body, status) {
  const error = body?.error;
  if (typeof error === 'string') return { message: error };
  if (typeof error?.message === 'string') return error;
  return { message: `The server answered with status ${status}.` };
}

// Makes an error of what a stream reports after it has started.
export function streamError(error) {
  const { message, type, param } = errorOf({ error }, error?.code ?? 500);
  return new RequestError(message, { status: Number(error?.code) || 500, type, param });
}
