// A dialog in a terminal, over /v1/chat/completions, streamed. Node.js 20 or later, no packages.
// Usage: node chat.mjs [URL]; with a key, set API_KEY.

import { createInterface } from 'node:readline/promises';

const url = process.argv[2] ?? process.env.API_URL ?? 'http://127.0.0.1:8080';
const key = process.env.API_KEY;
const messages = [{ role: 'system', content: 'You give short, polite answers.' }];

async function* deltas(response) {
  let rest = '';
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: {')) continue;
      const { error, choices } = JSON.parse(line.slice(6));
      if (error) throw new Error(error.message);
      yield choices[0]?.delta.content ?? '';
    }
  }
}

async function answer() {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', ...(key ? { Authorization: `Bearer ${key}` } : {}) },
    body: JSON.stringify({ messages, max_tokens: 128, stream: true }),
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  let content = '';
  for await (const text of deltas(response)) {
    process.stdout.write(text);
    content += text;
  }
  process.stdout.write('\n');
  messages.push({ role: 'assistant', content });
}

const lines = createInterface({ input: process.stdin, output: process.stdout, prompt: '> ' });
lines.prompt();
for await (const line of lines) {
  messages.push({ role: 'user', content: line });
  await answer();
  lines.prompt();
}
