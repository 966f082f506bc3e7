// Server-sent events read with fetch, which can send a key, where EventSource cannot.

import { RequestError } from './server.js';

// Yields `{ event, data, id }` for each event, and `{ comment }` for each comment line.
// Throws `RequestError` if the connection is lost.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let fields = fresh();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(lost);
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === '') {
          if (fields.data.length) yield { ...fields, data: fields.data.join('\n') };
          fields = fresh();
        } else if (line.startsWith(':')) {
          yield { comment: line.slice(1).trim() };
        } else {
          take(fields, line);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // frees the server's side if the caller has left early
  }
}

function lost(error) {
  if (error?.name === 'AbortError') throw error;
  throw new RequestError('The connection to the server was lost.');
}

const fresh = () => ({ event: 'message', data: [], id: null });

function take(fields, line) {
  const colon = line.indexOf(':');
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? '' : line.slice(colon + (line[colon + 1] === ' ' ? 2 : 1));
  if (name === 'data') fields.data.push(value);
  else if (name === 'event') fields.event = value;
  else if (name === 'id') fields.id = value;
}
