// What the server says of itself: its models, and the properties of the chosen one.

import { effect, signal } from '../../shared/ui.js';
import { requestJson } from '../../shared/server.js';
import { apiKey, stored } from '../../shared/stored.js';

export const models = signal([]);
export const serverTrouble = signal('');
export const props = signal(null);
// The model of the next message; '' until the list is known.
export const model = stored('model', '');

const RETRY_MS = 3000;
let timer = 0;

export async function loadModels() {
  clearTimeout(timer);
  try {
    const { data } = await requestJson('v1/models');
    models.value = data.map(({ id }) => id);
    serverTrouble.value = '';
    if (!models.value.includes(model.value)) model.value = models.value[0] ?? '';
  } catch (error) {
    serverTrouble.value = error.message;
    if (error.isPassing) timer = setTimeout(loadModels, (error.retryAfter ?? 0) * 1000 || RETRY_MS);
  }
}

async function loadProps(name) {
  try {
    const found = await requestJson(`props?model=${encodeURIComponent(name)}`);
    if (name === model.value) props.value = found;
  } catch {
    props.value = null; // the settings say that they are not known
  }
}

// Asks now, and again when the key or the model changes.
export function watchServer() {
  const stops = [
    effect(() => {
      apiKey.value;
      loadModels();
    }),
    effect(() => {
      if (model.value && models.value.includes(model.value)) loadProps(model.value);
    }),
  ];
  addEventListener('online', loadModels);
  return () => {
    removeEventListener('online', loadModels);
    clearTimeout(timer);
    stops.forEach((stop) => stop());
  };
}
