// What the server says of itself: its models, and the properties of the chosen one.

import { effect, signal } from '../../index.js';
import { requestJson } from '../../shared/server.js';
import { apiKey, stored } from '../../shared/stored.js';

export const models = signal([]);
export const serverTrouble = signal('');
export const props = signal(null);
// The model of the next message; '' until the list is known.
export const model = stored('model', '');

const RETRY_MS = 3000;

// Asks until it is answered, or until the signal says that nobody wants to know it any more.
async function loadModels(until) {
  try {
    const { data } = await requestJson('v1/models', { signal: until });
    until.throwIfAborted();
    models.value = data.map(({ id }) => id);
    serverTrouble.value = '';
    if (!models.value.includes(model.value)) model.value = models.value[0] ?? '';
  } catch (error) {
    if (until.aborted) return;
    serverTrouble.value = error.message;
    if (!error.isPassing) return;
    const timer = setTimeout(() => loadModels(until), (error.retryAfter ?? 0) * 1000 || RETRY_MS);
    until.addEventListener('abort', () => clearTimeout(timer));
  }
}

let described = ''; // the model that the properties are of

async function loadProps(name, until) {
  let found = null; // the settings say that they are not known
  if (described !== name) props.value = null;
  described = name;
  try {
    found = await requestJson(`props?model=${encodeURIComponent(name)}`, { signal: until });
  } catch {
    // Told by the list of models, if the server is away.
  }
  if (!until.aborted) props.value = found;
}

const nOnline = signal(0);
const onOnline = () => {
  nOnline.value += 1;
};

// Runs `ask` with a signal that ends it when it is to run again, and when the watching ends.
function asking(ask) {
  return effect(() => {
    const controller = new AbortController();
    ask(controller.signal);
    return () => controller.abort();
  });
}

// Asks now, and again when the key or the model changes or the network comes back.
export function watchServer() {
  const stops = [
    asking((until) => {
      apiKey.value;
      nOnline.value;
      loadModels(until);
    }),
    asking((until) => {
      const name = model.value;
      if (name && models.value.includes(name)) loadProps(name, until);
    }),
  ];
  addEventListener('online', onOnline);
  return () => {
    removeEventListener('online', onOnline);
    stops.forEach((stop) => stop());
  };
}
