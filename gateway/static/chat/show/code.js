// Blocks of code: a line with the language and a button that copies, and colours once they are whole.

import { copyBy } from './clipboard.js';
import { sanitized } from './sanitize.js';

const MAX_CHARS = 50_000;
const LANGUAGES = new Set(
  'bash cpp css diff go java javascript json python rust sql typescript xml yaml'.split(' '),
);
const ALIASES = {
  c: 'cpp', 'c++': 'cpp', console: 'bash', golang: 'go', h: 'cpp', hpp: 'cpp', html: 'xml',
  js: 'javascript', jsx: 'javascript', mjs: 'javascript', patch: 'diff', py: 'python', rs: 'rust',
  sh: 'bash', shell: 'bash', svg: 'xml', ts: 'typescript', tsx: 'typescript', yml: 'yaml', zsh: 'bash',
};

const later = globalThis.requestIdleCallback ?? ((work) => setTimeout(work, 0));
const loaded = new Map();

export function dressCode(fragment, isWhole) {
  for (const code of fragment.querySelectorAll('pre > code')) {
    const name = (/language-(\S+)/.exec(code.className)?.[1] ?? '').toLowerCase();
    const frame = document.createElement('div');
    frame.className = 'code';
    code.parentNode.replaceWith(frame);
    frame.append(headOf(name, code), code.parentNode);
    code.parentNode.tabIndex = 0; // may have to be scrolled sideways, with the keyboard too
    if (isWhole) later(() => colour(code, ALIASES[name] ?? name));
  }
  for (const table of fragment.querySelectorAll('table')) {
    const frame = document.createElement('div');
    frame.className = 'table';
    frame.tabIndex = 0;
    table.replaceWith(frame);
    frame.append(table);
  }
}

function headOf(name, code) {
  const head = document.createElement('div');
  head.className = 'code-head';
  const label = document.createElement('span');
  label.textContent = name;
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'quiet';
  button.textContent = 'Copy';
  button.title = 'Copy this code';
  button.addEventListener('click', () => copyBy(button, code.textContent));
  head.append(label, button);
  return head;
}

async function colour(code, name) {
  const text = code.textContent;
  if (!LANGUAGES.has(name) || text.length > MAX_CHARS || !code.isConnected) return;
  const hljs = await language(name).catch(() => null);
  if (!hljs || code.textContent !== text) return;
  const { value } = hljs.highlight(text, { language: name, ignoreIllegals: true });
  code.replaceChildren(sanitized(value));
}

function language(name) {
  if (!loaded.has(name)) {
    const coming = load(name);
    coming.catch(() => loaded.delete(name)); // the next block asks again
    loaded.set(name, coming);
  }
  return loaded.get(name);
}

async function load(name) {
  const [{ default: hljs }, { default: grammar }] = await Promise.all([
    import('../../vendor/highlight/core.js'),
    import(`../../vendor/highlight/languages/${name}.js`),
  ]);
  hljs.registerLanguage(name, grammar);
  return hljs;
}
