// Starts the page: the shell, in which the views of chat and pool stand.

import { html, render } from './index.js';
import { Shell } from './shared/shell.js';

render(html`<${Shell} />`, document.getElementById('app'));
