// The chat.

import { html } from '../shared/ui.js';

export default function Chat() {
  return html`<main class="chat"></main>`;
}
