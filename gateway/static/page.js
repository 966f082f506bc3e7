// The built-in page: a chat over /v1/chat/completions, and what the slots do.
import { answer, events } from './completion.js';

const at = (id) => document.getElementById(id);
const turns = [];
let controller = null;

const headers = () => {
  const key = at('key').value.trim();
  return { 'Content-Type': 'application/json', ...(key ? { Authorization: `Bearer ${key}` } : {}) };
};

const get = async (path) => answer(await fetch(path, { headers: headers() }));

async function listModels() {
  try {
    const { data } = await get('v1/models');
    const chosen = at('model').value;
    at('model').replaceChildren(...data.map(({ id }) => new Option(id, id, false, id === chosen)));
    at('status').textContent = '';
  } catch (error) {
    at('status').textContent = error.message;
  }
}

async function listSlots() {
  if (!at('slots').open) return;
  const cell = (value) => Object.assign(document.createElement('td'), { textContent: value ?? '' });
  try {
    const model = encodeURIComponent(at('model').value);
    const rows = (await get(`slots?model=${model}`)).map((slot) => {
      const row = document.createElement('tr');
      const state = slot.is_processing ? 'working' : 'idle';
      const generated = slot.next_token?.[0]?.n_decoded;
      const figures = [slot.id, state, slot.id_task, slot.n_prompt_tokens, generated, slot.n_ctx];
      row.append(...figures.map(cell));
      return row;
    });
    at('slots').querySelector('tbody').replaceChildren(...rows);
  } catch (error) {
    at('status').textContent = error.message;
  }
}

function show(kind, text = '') {
  const turn = document.createElement('div');
  turn.className = `turn ${kind}`;
  const parts = { thought: 'div', text: 'span', note: 'small' };
  for (const [name, tag] of Object.entries(parts)) {
    turn[name] = turn.appendChild(document.createElement(tag));
    turn[name].className = name;
  }
  turn.text.textContent = text;
  at('dialog').append(turn);
  turn.scrollIntoView({ block: 'end' });
  return turn;
}

function request() {
  const system = at('system').value.trim();
  return {
    model: at('model').value,
    messages: [...(system ? [{ role: 'system', content: system }] : []), ...turns],
    temperature: Number(at('temperature').value),
    max_tokens: Number(at('tokens').value),
    stream: true,
  };
}

async function receive(turn) {
  const response = await fetch('v1/chat/completions', {
    method: 'POST',
    headers: headers(),
    body: JSON.stringify(request()),
    signal: controller.signal,
  });
  for await (const { choices, timings } of events(response)) {
    const delta = choices[0]?.delta ?? {};
    turn.thought.append(delta.reasoning_content ?? '');
    turn.text.append(delta.content ?? '');
    if (timings) turn.note.textContent = rate(timings);
  }
}

const rate = ({ predicted_n: n, predicted_per_second: speed }) =>
  `${n} tokens, ${speed.toFixed(1)} a second`;

async function send(event) {
  event.preventDefault();
  const text = at('text').value.trim();
  if (!text || controller) return;
  at('text').value = '';
  turns.push({ role: 'user', content: text });
  show('user', text);
  const turn = show('assistant');
  controller = new AbortController();
  at('send').disabled = true;
  at('stop').disabled = false;
  try {
    await receive(turn);
  } catch (error) {
    if (error.name !== 'AbortError') {
      turn.classList.add('error');
      turn.note.textContent = error.message;
    }
  }
  if (turn.text.textContent) turns.push({ role: 'assistant', content: turn.text.textContent });
  else turns.pop(); // an unanswered message would stand before the next one
  controller = null;
  at('send').disabled = false;
  at('stop').disabled = true;
}

at('form').addEventListener('submit', send);
at('stop').addEventListener('click', () => controller?.abort());
at('clear').addEventListener('click', () => {
  controller?.abort();
  turns.length = 0;
  at('dialog').replaceChildren();
});
at('text').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) send(event);
});
at('key').addEventListener('change', listModels);
at('slots').addEventListener('toggle', listSlots);
setInterval(listSlots, 2000);
listModels();
