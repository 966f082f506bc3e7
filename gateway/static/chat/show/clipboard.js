// Copying, also where the page came over plain HTTP and the browser has no clipboard for it.

export async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = document.createElement('textarea');
  field.value = text;
  field.className = 'read-aloud';
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  document.execCommand('copy');
  field.remove();
  before?.focus?.();
}

const SHOWN_MS = 1500;
// Buttons that say now that they have copied: what they said before, and when they say it again.
const saying = new WeakMap();

// Lets a button copy, and say for a moment that it has, or that the browser does not allow it.
export async function copyBy(button, text) {
  const outcome = await copy(text).then(() => 'Copied', () => 'Not copied');
  const { title, timer } = saying.get(button) ?? { title: button.title };
  clearTimeout(timer);
  label(button, outcome);
  button.classList.toggle('done', outcome === 'Copied');
  const again = setTimeout(() => {
    saying.delete(button);
    button.classList.remove('done');
    label(button, title);
  }, SHOWN_MS);
  saying.set(button, { title, timer: again });
}

function label(button, text) {
  button.title = text;
  button.setAttribute('aria-label', text);
}
