// Icons as SVG of 20 by 20; they take the colour of the text and say nothing to screen readers.

import { html } from '../index.js';

const PATHS = {
  attach: 'M14.5 8.5 8.6 14.4a3 3 0 0 1-4.2-4.2l6.6-6.6a2 2 0 0 1 2.8 2.8l-6.4 6.4a1 1 0 0 1-1.4-1.4l5.5-5.5',
  auto: 'M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14',
  back: 'm12 5-5 5 5 5',
  close: 'm5 5 10 10M15 5 5 15',
  copy: 'M7.5 7.5h8v8h-8zM12.5 7.5v-3h-8v8h3',
  down: 'm5 8 5 5 5-5',
  edit: 'm4 16 .6-3.2L13 4.4l2.6 2.6-8.4 8.4zM11.5 6l2.6 2.6',
  export: 'M10 13V4m-3 3 3-3 3 3M4 12v4h12v-4',
  forward: 'm8 5 5 5-5 5',
  import: 'M10 4v9m-3-3 3 3 3-3M4 12v4h12v-4',
  key: 'M7 3.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7zM9.5 9.5 16.5 16.5M13.5 13.5l2-2',
  menu: 'M4 6h12M4 10h12M4 14h12',
  moon: 'M16 11.5A6.5 6.5 0 1 1 8.5 4a5 5 0 0 0 7.5 7.5z',
  more: 'M5 10h.01M10 10h.01M15 10h.01',
  plus: 'M10 4v12M4 10h12',
  redo: 'M15.5 8A6 6 0 1 0 16 11.5M16 4v4h-4',
  search: 'M9 4a5 5 0 1 1 0 10A5 5 0 0 1 9 4zm3.6 8.6L16 16',
  send: 'M10 16V4m-5 5 5-5 5 5',
  settings: 'M4 6h7m4 0h1M4 14h1m4 0h7M13 4v4M7 12v4',
  stop: 'M6 6h8v8H6z',
  sun: 'M10 7a3 3 0 1 1 0 6 3 3 0 0 1 0-6zM10 2.5v1M10 16.5v1M2.5 10h1M16.5 10h1M4.7 4.7l.7.7M14.6 14.6l.7.7M4.7 15.3l.7-.7M14.6 5.4l.7-.7',
  trash: 'M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6',
};

export const Icon = ({ name }) => html`<svg
  class=${`icon icon-${name}`}
  viewBox="0 0 20 20"
  aria-hidden="true"
  focusable="false"
>
  <path d=${PATHS[name]} />
</svg>`;

// A button that shows only an icon; its label is read aloud and shown on hovering.
export const IconButton = ({ icon, label, ...rest }) => html`<button
  type="button"
  class="icon-button"
  aria-label=${label}
  title=${label}
  ...${rest}
>
  <${Icon} name=${icon} />
</button>`;
