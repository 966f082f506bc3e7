// A modal dialog: the browser's own, which keeps the focus inside and closes on Escape.

import { html, useId, useLayoutEffect, useRef } from '../index.js';
import { IconButton } from './icons.js';

// Shown while it is rendered; `onClose` has to end that.
export function Dialog({ title, onClose, children, kind = '' }) {
  const own = useRef(null);
  const id = useId();
  // At once, not after the next paint: what is typed or clicked meanwhile would go elsewhere. Closing
  // gives the focus back to what had it, which cannot take it as long as the dialog is open.
  useLayoutEffect(() => {
    const dialog = own.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  const onClosed = () => {
    if (own.current?.isConnected) onClose(); // else it has gone, and another may be open
  };
  const onPointerDown = (event) => {
    if (event.target === own.current) onClose(); // outside of the content lies the backdrop
  };
  return html`<dialog
    ref=${own}
    class=${`dialog ${kind}`}
    aria-labelledby=${id}
    onClose=${onClosed}
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
