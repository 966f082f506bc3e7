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

// Lets a button copy, and say for a moment that it has.
export async function copyBy(button, text) {
  await copy(text);
  const { title } = button;
  button.classList.add('done');
  button.title = 'Copied';
  button.setAttribute('aria-label', 'Copied');
  setTimeout(() => {
    button.classList.remove('done');
    button.title = title;
    button.setAttribute('aria-label', title);
  }, SHOWN_MS);
}
