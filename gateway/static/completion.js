// Completions for pages and scripts, under the names that llama-server's page has used since 2023.
//
//   import { llama } from '/completion.js'
//   for await (const chunk of llama('Tell me a joke', { n_predict: 800 })) {
//     document.write(chunk.data.content)
//   }

const DEFAULTS = { stream: true, n_predict: 500, temperature: 0.2, stop: ['</s>'] };

let settings = null;

// Yields one object an event of POST /completion, its decoded JSON in `data`; returns the whole text.
// `params` are the fields of the request and may hold an `api_key`; `config` may hold a `controller`
// (an AbortController) and an `api_url` to stand before the path.
export async function* llama(prompt, params = {}, config = {}) {
  const controller = config.controller ?? new AbortController();
  const { api_key: key, ...fields } = { ...DEFAULTS, ...params, prompt };
  let content = '';
  try {
    const response = await fetch(`${config.api_url ?? ''}/completion`, {
      method: 'POST',
      headers: {
        'Content-Type': 'application/json',
        Accept: 'text/event-stream',
        ...(key ? { Authorization: `Bearer ${key}` } : {}),
      },
      body: JSON.stringify(fields),
      signal: controller.signal,
    });
    for await (const data of events(response)) {
      content += data.content ?? '';
      settings = data.generation_settings ?? settings;
      yield { data };
      if (data.stop) break;
    }
  } finally {
    controller.abort(); // frees the slot if the caller has left early
  }
  return content;
}

// Dispatches `message`, `generation_settings`, `timings` and `done`; what they tell is in `detail`.
export const llamaEventTarget = (prompt, params = {}, config = {}) => {
  const target = new EventTarget();
  const tell = (name, detail) => target.dispatchEvent(new CustomEvent(name, { detail }));
  (async () => {
    let content = '';
    for await (const { data } of llama(prompt, params, config)) {
      content += data.content ?? '';
      tell('message', data);
      if (data.generation_settings) tell('generation_settings', data.generation_settings);
      if (data.timings) tell('timings', data.timings);
    }
    tell('done', { content });
  })().catch((error) => tell('error', error));
  return target;
};

// Resolves to the whole text.
export const llamaPromise = async (prompt, params = {}, config = {}) => {
  let content = '';
  for await (const { data } of llama(prompt, params, config)) content += data.content ?? '';
  return content;
};

// The oldest form: calls back for every event.
export const llamaComplete = async (params, controller, callback) => {
  for await (const chunk of llama(params.prompt, params, { controller })) callback(chunk);
};

// The settings that a request without fields takes.
export const llamaModelInfo = async (config = {}) => {
  if (!settings) {
    const key = config.api_key;
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const response = await fetch(`${config.api_url ?? ''}/props`, { headers });
    settings = (await answer(response)).default_generation_settings;
  }
  return settings;
};

// Yields the decoded `data` of each server-sent event; throws what the server says went wrong.
export async function* events(response) {
  if (!response.ok) await answer(response);
  if (!response.headers.get('Content-Type')?.startsWith('text/event-stream')) {
    yield await response.json();
    return;
  }
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: ') || line === 'data: [DONE]') continue;
      const data = JSON.parse(line.slice(6));
      if (data.error) throw new Error(data.error.message);
      yield data;
    }
  }
}

// Returns the decoded JSON of an answer; throws what the server says went wrong.
export async function answer(response) {
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Error(body?.error?.message ?? `HTTP ${response.status}`);
  return body;
}
