// What the pool is doing.

import { html } from '../shared/ui.js';

export default function Pool() {
  return html`<main class="pool"></main>`;
}
