// A modal dialog: the browser's own, which keeps the focus inside and closes on Escape.

import { html, useEffect, useId, useRef } from './ui.js';
import { IconButton } from './icons.js';

// Shown while it is rendered; `onClose` has to end that.
export function Dialog({ title, onClose, children, kind = '' }) {
  const own = useRef(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    own.current.showModal();
    return () => before?.focus?.();
  }, []);
  const onPointerDown = (event) => {
    if (event.target === own.current) onClose(); // outside of the content lies the backdrop
  };
  return html`<dialog
    ref=${own}
    class=${`dialog ${kind}`}
    aria-labelledby=${id}
    onClose=${onClose}
    onPointerDown=${onPointerDown}
  >
    <div class="dialog-content">
      <header>
        <h2 id=${id}>${title}</h2>
        <${IconButton} icon="close" label="Close" onClick=${onClose} />
      </header>
      ${children}
    </div>
  </dialog>`;
}
